"""The settings of a training, each changed by KEY=VALUE on the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields

from example import InputError

CHOICES = {
    "strategy": ("single", "ddp", "horovod", "zero1", "zero2", "zero3", "fsdp", "tp", "pp", "3d"),
    "schedule": ("gpipe", "1f1b"),
    "offload": ("none", "cpu", "nvme"),
}


@dataclass(frozen=True)
class Config:
    data: str = ""  # a text file or a directory of them; empty: /data if mounted, else the licences in the image
    strategy: str = "ddp"
    pp: int = 2  # pipeline stages of strategy 3d
    tp: int = 2  # ranks that share each layer of strategy 3d
    schedule: str = "1f1b"  # of pipelines
    offload: str = "none"  # where ZeRO keeps its optimizer, and ZeRO 3 its parameters; nvme, of ZeRO 3, is $TMPDIR
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64  # characters that the model sees
    batch: int = 64  # sequences per step, of all ranks together
    micro_batch: int = 8  # sequences per forward pass of a rank; several passes accumulate gradients
    steps: int = 1000
    lr: float = 1e-3
    warmup: int = 100  # steps
    weight_decay: float = 0.1
    clip: float = 1.0  # norm of the gradient of the whole model
    bf16: bool = False
    recompute: bool = False  # activations, in the backward pass
    seed: int = 1
    save_every: int = 250  # steps
    sample: int = 300  # characters to make up after the training


def parse(words: list[str]) -> Config:
    """The settings of KEY=VALUE or --KEY=VALUE words. Raises InputError."""
    types = {field.name: type(field.default) for field in fields(Config)}
    values = {}
    for key, _, text in (word.removeprefix("--").partition("=") for word in words):
        if key not in types:
            raise InputError(f"unknown setting {key!r}; pass KEY=VALUE with a key of {', '.join(types)}")
        try:
            values[key] = {"true": True, "false": False}[text.lower()] if types[key] is bool else types[key](text)
        except (ValueError, KeyError):
            raise InputError(f"{key} must be of type {types[key].__name__}, not {text!r}") from None
        if values[key] not in CHOICES.get(key, (values[key],)):
            raise InputError(f"{key} must be one of {', '.join(CHOICES[key])}, not {text!r}")
        if types[key] is int and values[key] < (least := int(key not in ("warmup", "seed", "sample"))):
            raise InputError(f"{key} must be at least {least}, not {text!r}")
    return Config(**values)
