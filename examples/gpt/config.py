"""The settings of a training, each changed by KEY=VALUE on the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields

CHOICES = {
    "strategy": ("single", "ddp", "horovod", "zero1", "zero2", "zero3", "fsdp", "tp", "pp", "3d"),
    "schedule": ("gpipe", "1f1b"),
    "offload": ("none", "cpu", "nvme"),
}


class ConfigError(ValueError):
    """A setting that cannot work; the message names it."""


@dataclass(frozen=True)
class Config:
    data: str = ""  # text file or directory of them; empty: /data if mounted, else the licences in the image
    strategy: str = "ddp"
    pp: int = 2  # pipeline stages of strategy 3d
    tp: int = 2  # ranks that share each layer of strategy 3d
    schedule: str = "1f1b"  # of pipelines
    offload: str = "none"  # where ZeRO keeps its optimizer, and ZeRO 3 also the parameters
    nvme: str = "/tmp"  # noqa: S108  # directory for offload=nvme, on each node
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64  # characters that the model sees
    batch: int = 64  # sequences per step, of all ranks together
    micro_batch: int = 8  # sequences per forward pass of a rank; more passes accumulate gradients
    steps: int = 1000
    lr: float = 1e-3
    warmup: int = 100  # steps
    weight_decay: float = 0.1
    clip: float = 1.0  # norm of the gradient of the whole model
    bf16: bool = False
    recompute: bool = False  # keep no activations of a block: its forward pass runs again in the backward pass
    seed: int = 1
    save_every: int = 250  # steps
    sample: int = 300  # characters to make up after the training


def parse(words: list[str]) -> Config:
    """The settings of KEY=VALUE or --KEY=VALUE words. Raises ConfigError."""
    types = {field.name: type(field.default) for field in fields(Config)}
    values = {}
    for key, _, text in (word.removeprefix("--").partition("=") for word in words):
        if key not in types:
            raise ConfigError(f"unknown setting {key!r}; pass KEY=VALUE with a key of {', '.join(types)}")
        try:
            values[key] = {"true": True, "false": False}[text.lower()] if types[key] is bool else types[key](text)
        except (ValueError, KeyError):
            raise ConfigError(f"{key} must be of type {types[key].__name__}, not {text!r}") from None
        if values[key] not in CHOICES.get(key, (values[key],)):
            raise ConfigError(f"{key} must be one of {', '.join(CHOICES[key])}, not {text!r}")
        if types[key] is int and values[key] < (least := int(key not in ("warmup", "seed", "sample"))):
            raise ConfigError(f"{key} must be at least {least}, not {text!r}")
    return Config(**values)
