"""What is known of NVIDIA's images without pulling them: by definitions/ngc.yaml, or by an image's own variables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ctrain_runtime.base import config, strict_yaml
from ctrain_runtime.errors import ConfigError

FILE = "ngc.yaml"
_VARIABLES = {
    "cuda": "CUDA_VERSION",
    "torch": "PYTORCH_VERSION",
    "tensorflow": "TENSORFLOW_VERSION",
    "driver": "CUDA_DRIVER_VERSION",
    "nccl": "NCCL_VERSION",
    "hpcx": "HPCX_VERSION",
    "openmpi": "OPENMPI_VERSION",
    "ucx": "OPENUCX_VERSION",
    "arch": "TORCH_CUDA_ARCH_LIST",
}


@dataclass(frozen=True)
class Release:
    """NVIDIA's PyTorch image of one tag. "" is not known; `unverified` names fields that nobody has seen to be so."""

    cuda: str = ""
    torch: str = ""
    tensorflow: str = ""
    python: str = ""
    ubuntu: str = ""
    driver: str = ""
    minimum_driver: str = ""
    older_drivers: tuple[str, ...] = ()
    nccl: str = ""
    hpcx: str = ""
    openmpi: str = ""
    ucx: str = ""
    arch: str = ""
    unverified: tuple[str, ...] = ()

    def shown(self, name: str) -> str:
        """A field for people: ~ stands before what is not verified, and - for what is not known."""
        value = getattr(self, name)
        return f"{'~' if name in self.unverified else ''}{value}" if value else "-"

    @property
    def shared(self) -> Release:
        """What holds for NVIDIA's other images of the same tag too."""
        return replace(self, torch="", python="", arch="")

    @property
    def needs_driver(self) -> str:
        """The oldest branch of drivers that serves any GPU, for people: 560. By NVIDIA's rule, its own driver's."""
        return self.shown("minimum_driver" if self.minimum_driver else "driver").split(".")[0]


@dataclass(frozen=True)
class Generation:
    """GPUs of one compute capability. `name` is that of the architecture; the best known GPU stands first."""

    name: str
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """definitions/ngc.yaml. Its keys are tags as in 24.12, and compute capabilities as in 8.0."""

    checked: str
    generations: dict[str, Generation]
    releases: dict[str, Release]

    def gpus(self, arch: str) -> tuple[str, ...]:
        """The best known GPUs of each generation for which a TORCH_CUDA_ARCH_LIST has machine code, oldest first.

        Later GPUs may run what is marked +PTX, which they compile at every first start.
        """
        compiled = [(int(major), int(minor)) for major, minor in re.findall(r"(\d+)\.(\d+)", arch)]
        pairs = ((tuple(map(int, key.split("."))), generation.gpus[0]) for key, generation in self.generations.items())
        return tuple(gpu for (major, minor), gpu in pairs if any(m == major and n <= minor for m, n in compiled))


def read(directory: Path) -> Table:
    """The table in the directory of the definitions. Raises ConfigError."""
    path = directory / FILE
    data = strict_yaml.read(path)
    data["checked"] = str(data.get("checked", ""))  # YAML makes a date of it
    table = config.load(Table, data, str(path))
    known = {field.name for field in fields(Release)}
    for tag, release in table.releases.items():
        if not re.fullmatch(r"\d\d\.\d\d", tag):
            raise ConfigError(f"{path}: releases: {tag} is not a tag as in 24.12", "Write it in quotes")
        for name in release.unverified:
            if name not in known:
                raise ConfigError(
                    f"{path}: releases.{tag}: unverified names {name!r}, which is not a field of a release"
                )
    return table


def of_image(variables: Iterable[str]) -> Release:
    """What an image's own variables (NAME=VALUE) say of it."""
    values = dict(pair.split("=", 1) for pair in variables if "=" in pair)
    stated = {field: values.get(name, "") for field, name in _VARIABLES.items()}
    stated["cuda"] = ".".join(stated["cuda"].split(".")[:3])  # without the build: 12.6.3.004
    return config.load(Release, stated, "the image")
