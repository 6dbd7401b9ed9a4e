"""The settings of a training, each changed by KEY=VALUE on the command line."""

from __future__ import annotations

from dataclasses import dataclass

import settings
from gpt_shape import Shape

CHOICES = {
    "model": ("gpt2", "llama"),
    "strategy": ("single", "ddp", "horovod", "zero1", "zero2", "zero3", "fsdp", "tp", "pp", "3d"),
    "schedule": ("gpipe", "1f1b"),
    "offload": ("none", "cpu", "nvme"),
}


@dataclass(frozen=True)
class Config(Shape):
    data: str = ""  # a text file, a directory of them or of common/tokens.py; empty: /data if mounted, else licences
    strategy: str = "ddp"
    pp: int = 2  # pipeline stages of strategy 3d
    tp: int = 2  # ranks that share each layer of strategy 3d
    sequence_parallel: bool = False  # what ranks of tp and 3d compute between layers is cut along the sequence, too
    schedule: str = "1f1b"  # of pipelines
    offload: str = "none"  # where ZeRO keeps its optimizer, and ZeRO 3 its parameters; nvme is a disk, of ZeRO 3 only
    tiles: int = 1  # of zero3: parts of each wide layer that are gathered, used and given up one after the other
    batch: int = 64  # sequences per step, of all ranks together
    micro_batch: int = 8  # sequences per forward pass of a rank, at most; several passes accumulate gradients
    weights: str = ""  # a directory with a GPT-2 or Llama of Hugging Face to start from; empty: random ones
    steps: int = 1000
    lr: float = 1e-3
    warmup: int = 100  # steps
    weight_decay: float = 0.1
    clip: float = 1.0  # largest norm of the gradient of the whole model; 0: as it is
    bf16: bool = False
    recompute: bool = False  # activations, in the backward pass
    compile: bool = False  # blocks, by torch.compile: a minute or more at the start, then faster steps
    seed: int = 1
    save_every: int = 250  # steps
    validate_every: int = 250  # steps; 0: only after the last
    sample: int = 300  # tokens to make up after the training

    def micro_batch_of(self, share: int, stages: int) -> int:
        """The largest that divides the share of a rank, and gives each stage of a pipeline one to work on."""
        most = min(self.micro_batch, share // stages)
        return max(size for size in range(1, most + 1) if share % size == 0)


def parse(words: list[str]) -> Config:
    """The settings of KEY=VALUE, --KEY=VALUE or --KEY VALUE words. Raises InputError."""
    zero = ("warmup", "weight_decay", "clip", "seed", "validate_every", "sample", "kv_heads", "ffn")
    config = settings.parse(words, Config, CHOICES, may_be_zero=zero)
    needed = {"cpu": "zero1, zero2 or zero3", "nvme": "zero3"}.get(config.offload, config.strategy)
    if config.strategy not in needed:
        raise settings.InputError(f"offload={config.offload} needs strategy={needed}, not {config.strategy}")
    if config.sequence_parallel and config.strategy != "tp" and (config.strategy, config.tp > 1) != ("3d", True):
        raise settings.InputError("sequence_parallel=true needs strategy=tp, or strategy=3d with tp=2 or more")
    if config.tiles > 1 and config.strategy != "zero3":
        raise settings.InputError(f"tiles={config.tiles} needs strategy=zero3, not {config.strategy}")
    if config.compile and config.strategy == "zero3":  # whose parameters come and go within a block
        raise settings.InputError("compile=true needs another strategy than zero3, such as fsdp")
    return config
