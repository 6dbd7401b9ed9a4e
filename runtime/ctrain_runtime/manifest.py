"""The manifest of an image: all that is known of it, in a .json file beside the .sif. Format: docs/store.md."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime import config
from ctrain_runtime.errors import ConfigError

SCHEMA = 4  # 1 lacked what has a default below; 2 and 1 the checksum; 3 and older `below`
_CHECKED = 3  # the first schema with a checksum
CHECKSUM = "checksum"  # of the file's other keys
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.sif")
FLAT_SUFFIX = "-flat"  # ends the names of images whose layers are merged into one file system


@dataclass(frozen=True)
class Layer:
    """One definition's part of an image. `key` names all that made it; size and digest are those of its partition."""

    definition: str
    key: str
    size: int
    digest: str = ""


@dataclass(frozen=True)
class TestResult:
    """One test inside the image; `seconds` is its wall time, `skipped` why it could not be run."""

    name: str
    passed: bool
    seconds: str
    skipped: str = ""

    @property
    def outcome(self) -> str:
        return "skipped" if self.skipped else "passed" if self.passed else "failed"


@dataclass(frozen=True)
class Base:
    """What the lowest layer starts from. `digest` is the registry's; "" for what comes from no registry."""

    reference: str = ""
    digest: str = ""


@dataclass(frozen=True)
class StoredFile:
    """A file of an image; `size` in bytes."""

    name: str
    digest: str
    size: int

    def __post_init__(self) -> None:
        if not _FILE.fullmatch(self.name):
            raise ConfigError(f"{self.name!r} is not the name of an image's file")


@dataclass(frozen=True)
class Requires:
    """What an image with CUDA needs of a node: at least this NVIDIA driver (on data-centre GPUs, an older one of these
    branches will do), and GPUs of these kinds (V100 ...), whose compute capabilities `arch` holds (7.0 ...)."""

    driver: str = ""
    older_drivers: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    arch: tuple[str, ...] = ()

    def matching_gpus(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of `gpus` that some of `names` mean, as schedulers and drivers write them: a100, cas_v100nv_8,
        NVIDIA H100 80GB HBM3."""

        def named(gpu: str) -> bool:
            word = rf"(?<![a-z0-9]){re.escape(gpu.lower())}(?![0-9])"
            return any(re.search(word, re.sub(r"[-_]", " ", name.lower())) for name in names)

        return tuple(filter(named, self.gpus))


@dataclass(frozen=True)
class Manifest:
    """What is known of an image. `release` is 0 until it is published; `size` is in bytes."""

    name: str
    tag: str
    stack: str
    digest: str
    size: int
    arch: str
    built: str
    layers: tuple[Layer, ...]
    software: dict[str, str]
    tests: tuple[TestResult, ...]
    tools: dict[str, str]
    revision: Optional[str] = None
    release: int = 0
    published: Optional[str] = None
    schema: int = SCHEMA
    labels: dict[str, str] = field(default_factory=dict)
    base: Base = field(default_factory=Base)
    flat: bool = False
    requires: Requires = field(default_factory=Requires)
    signed: bool = False
    below: Optional[StoredFile] = None  # of a thin image: its base, in a folder of the store for all that have it

    @property
    def version(self) -> str:
        """As in 24.12-hd-r3, or 24.12-hd-r3-flat."""
        return f"{self.tag}-{self.stack}-r{self.release}{FLAT_SUFFIX if self.flat else ''}"

    @property
    def file_name(self) -> str:
        """As in pytorch_24.12-hd-py3-r3.sif, beside the habit of the sites."""
        return f"{self.name}_{self.tag}-{self.stack}-py3-r{self.release}{FLAT_SUFFIX if self.flat else ''}.sif"

    @property
    def tested(self) -> bool:
        """Whether no test failed, and at least one was run."""
        outcomes = {test.outcome for test in self.tests}
        return "passed" in outcomes and "failed" not in outcomes


def read_manifest(path: Path) -> Manifest:
    """The manifest in a .json file. Raises ConfigError when it isn't one."""
    try:
        return parse_manifest(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error


def parse_manifest(text: bytes, where: str) -> Manifest:
    """The manifest that `text` holds; `where` is what errors name. Raises ConfigError."""
    try:
        data = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not a manifest: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{where} is not a manifest")
    schema = data.get("schema", 1)
    if schema not in range(1, SCHEMA + 1):  # before its keys are read: a newer schema may well have others
        raise ConfigError(f"{where} has manifest schema {schema}", "Use a newer ctrain")
    told = data.pop(CHECKSUM, "")
    if (told or schema >= _CHECKED) and told != checksum(data):
        raise ConfigError(
            f"{where} was changed since it was written: its checksum is wrong", "Look further with: ctrain store verify"
        )
    return config.load(Manifest, {**data, "schema": SCHEMA}, where)


def checksum(data: Mapping[str, Any]) -> str:
    """The value of the key CHECKSUM beside all others: SHA-256 of them as JSON, sorted and without spaces."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
