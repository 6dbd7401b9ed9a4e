"""The manifest of an image: its metadata, in a .json file next to the .sif. Format: docs/store-format.md."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.base import config
from ctrain_runtime.errors import ConfigError

SCHEMA = 4  # 1 lacks the fields with a default below, 1 and 2 the checksum; 4 may have `below`
_FIRST_WITH_CHECKSUM = 3
CHECKSUM = "checksum"  # key whose value covers all other keys
_OF_BUILDS = ("fingerprint", "engine")  # keys of tests in a builder's cache: see ctrain_builder.testing.record
_BELOW = "below"  # of schema 4: null; or, for a thin image, the file of its base, which versions shared
PARENT_LABEL = "org.ctrain.parent"  # the published image that this one was built on, with its digest
ADOPTED_LABEL = (
    "org.ctrain.adopted"  # of the manifest alone: the file that a version was copied from, as in PATH@sha256:...
)
LICENSES_LABEL = "org.opencontainers.image.licenses"  # of the layers and, in the manifest, of the packages, combined
LAYER_LICENSES_LABEL = "org.ctrain.licenses"  # those of the layers, as in "base: BSD-3-Clause; upper: MIT"
REDISTRIBUTE_LABEL = "org.ctrain.redistribute"  # of the manifest alone: whether it may be passed on: yes, no or unknown
# Of packages, of the manifest alone: how many are under which, as in "MIT 61; BSD-3-Clause 40; not named 12"
PACKAGE_LICENSES_LABEL = "org.ctrain.licenses.packages"
BASE_BUILT_LABEL = "org.ctrain.base.built"  # of the manifest alone: when a base from package mirrors was built (UTC)
CPU_LABEL = "org.ctrain.cpu"  # the CPU that an image for x86-64 is compiled for, as gcc's -march: x86-64-v3
ENTRY_POINT = "entry point"  # label: the program that `apptainer run` would start
FLAT_SUFFIX = "-flat"  # of images whose layers are merged into one file system
_RELEASE = rf"r\d+(?:{FLAT_SUFFIX})?"


class Unchecked(ConfigError):
    """A manifest or an image that may well be in order: it cannot be read now, or only by another version of ctrain."""


@dataclass(frozen=True)
class Layer:
    """The layer of one definition. `key` is the hash of its inputs; size (bytes) and digest are of its partition."""

    definition: str
    key: str
    size: int
    digest: str = ""


@dataclass(frozen=True)
class TestResult:
    """One test in the image; `seconds` is its wall time, `skipped` the reason it was not run ("" if it was)."""

    name: str
    passed: bool
    seconds: str
    skipped: str = ""

    @property
    def outcome(self) -> str:
        return "skipped" if self.skipped else "passed" if self.passed else "failed"


@dataclass(frozen=True)
class Base:
    """The base of the lowest layer. `digest` is that of the registry; "" if it is not from a registry."""

    reference: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Requires:
    """What a CUDA image requires of a node: `driver` or newer (on data-centre GPUs, also the branches `older_drivers`),
    and one of the GPU models `gpus` (V100 ...), with the compute capabilities `arch` (7.0 ...)."""

    driver: str = ""
    older_drivers: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    arch: tuple[str, ...] = ()

    def matching_gpus(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of `gpus` that `names` contain, in the spelling of schedulers and drivers: a100, cas_v100nv_8,
        NVIDIA H100 80GB HBM3."""

        def matches(gpu: str) -> bool:
            word = rf"(?<![a-z0-9]){re.escape(gpu.lower())}(?![0-9])"
            return any(re.search(word, re.sub(r"[-_]", " ", name.lower())) for name in names)

        return tuple(filter(matches, self.gpus))


@dataclass(frozen=True)
class Manifest:
    """The metadata of an image, which never change once it is published: until then `release` is 0. `size` is in
    bytes."""

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

    @property
    def version(self) -> str:
        """As in 24.12-hd-r3, or 24.12-hd-r3-flat; "" for an image that ctrain did not build."""
        if not self.tag:
            return ""
        return f"{self.tag}-{self.stack}-r{self.release}{FLAT_SUFFIX if self.flat else ''}"

    @property
    def reference(self) -> str:
        """As in pytorch:24.12-hd-r3."""
        return f"{self.name}:{self.version}"

    @property
    def file_name(self) -> str:
        """As in pytorch_24.12-hd-py3-r3.sif."""
        return f"{file_stem(self.name, self.version)}.sif"

    @property
    def adopted(self) -> bool:
        """Whether it is a version of a store that ctrain did not build: nothing of it was tested."""
        return bool(self.tag) and not self.layers

    @property
    def adopted_digest(self) -> str:
        """The digest of the file that it was adopted from, which had no package list; "" if ctrain built it."""
        return self.labels.get(ADOPTED_LABEL, "").rpartition("@")[2] if self.adopted else ""

    @property
    def tested(self) -> bool:
        """Whether no test failed and at least one passed."""
        outcomes = {test.outcome for test in self.tests}
        return "passed" in outcomes and "failed" not in outcomes


def file_stem(name: str, version: str) -> str:
    """The file name of a version, without .sif: of pytorch 24.12-hd-r3, pytorch_24.12-hd-py3-r3."""
    with_python = re.sub(rf"-({_RELEASE})\Z", r"-py3-\1", version)
    return f"{name}_{with_python}"


def version_of(stem: str) -> str:
    """The version in a file name: of pytorch_24.12-hd-py3-r3, 24.12-hd-r3."""
    return re.sub(rf"-py3-({_RELEASE})\Z", r"-\1", stem.partition("_")[2])


def is_version(text: str) -> bool:
    """Whether a word looks like a version, so that nothing else may be called so."""
    return re.fullmatch(rf".*-{_RELEASE}", text) is not None


def read_manifest(path: Path) -> Manifest:
    """The manifest in a .json file. Raises ConfigError if it is not one; Unchecked if it cannot be read."""
    try:
        return parse_manifest(path.read_bytes(), str(path))
    except OSError as error:
        raise Unchecked(f"cannot read {path}: {error.strerror}") from error


def parse_manifest(text: bytes, source: str) -> Manifest:
    """The manifest in `text`; `source` is named in errors. Raises ConfigError; Unchecked for one of a newer schema."""
    data = parse_keys(text, source)
    if not data.get("release") and isinstance(data.get("tests"), list):  # of an image in a builder's cache
        data["tests"] = [_without_build_keys(test) for test in data["tests"]]
    return config.load(Manifest, data, source)


def parse_keys(text: bytes, source: str) -> dict[str, Any]:
    """The keys of a manifest, with the present schema. Raises as `parse_manifest`."""
    try:
        data = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not a manifest: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{source} is not a manifest: not a JSON object")
    schema = data.get("schema", 1)
    if type(schema) is not int or schema < 1:
        raise ConfigError(f"{source} is not a manifest: invalid schema {schema!r}")
    if schema > SCHEMA:  # before its keys are read: a newer schema may have others
        problem = f"unsupported manifest schema {schema} in {source} (supported: 1 to {SCHEMA})"
        raise Unchecked(problem, "Upgrade ctrain")
    recorded = data.pop(CHECKSUM, "")
    if (recorded or schema >= _FIRST_WITH_CHECKSUM) and recorded != checksum(data):
        raise ConfigError(f"checksum mismatch: {source} was modified", "Check with: ctrain store verify")
    if data.pop(_BELOW, None):
        hint = "Publish the image again, then remove this version: see `ctrain help store`"
        raise Unchecked(f"{source} is of a thin image, which lacks its base and is no longer supported", hint)
    return {**data, "schema": SCHEMA}


def _without_build_keys(test: Any) -> Any:
    return {key: test[key] for key in test if key not in _OF_BUILDS} if isinstance(test, dict) else test


def checksum(data: Mapping[str, Any]) -> str:
    """The value of key CHECKSUM: SHA-256 of all other keys as JSON, sorted and without spaces."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def combined_licenses(licenses: Iterable[str]) -> str:
    """One expression of SPDX for what is under all of these licences; one that is named twice counts once."""
    distinct = [licence for licence in dict.fromkeys(licenses) if licence]
    if len(distinct) < 2:
        return "".join(distinct)
    return " AND ".join(f"({licence})" if " OR " in licence else licence for licence in distinct)


def stated_licenses(labels: Mapping[str, str]) -> str:
    """What an image's layers say, or the image as a whole: without the claims of its packages."""
    if PACKAGE_LICENSES_LABEL not in labels or ADOPTED_LABEL in labels:
        return labels.get(LICENSES_LABEL, "")
    return combined_licenses(layer_licenses(labels).values())


def layer_licenses(labels: Mapping[str, str]) -> dict[str, str]:
    """The licence of each layer that names one, from the base upwards; {} for images made before labels had them."""
    parts = labels.get(LAYER_LICENSES_LABEL, "").split("; ")
    return {name: licence for name, colon, licence in (part.partition(": ") for part in parts) if colon}
