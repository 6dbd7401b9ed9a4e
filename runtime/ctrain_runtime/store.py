"""The read side of a store: a plain directory of published images. Format: docs/store.md.

    STORE/ctrain-store.json                         marker with the layout's version
    STORE/pytorch-cpu_2.13.0-hd-py3-r1.sif          an image, immutable
    STORE/pytorch-cpu_2.13.0-hd-py3-r1.json         its manifest
    STORE/channels/pytorch-cpu_prod.sif             a channel: a relative link to an image

Readers take no lock: an image counts only when its manifest is there, and the manifest is renamed into place last.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime import config
from ctrain_runtime.errors import ConfigError, ImageNotFound, StoreError

MARKER = "ctrain-store.json"
LAYOUT = 1
SCHEMA = 2  # of manifests; 1 lacked what has a default below
CHANNELS = "channels"
DEFAULT_CHANNEL = "prod"
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
FLAT = "-flat"  # ends the names of images whose layers are merged into one file system
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")  # tags, stacks and channels: never a path


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
class Requires:
    """What an image with CUDA needs of a node: at least this NVIDIA driver (on data-centre GPUs, an older one of these
    branches will do), and GPUs of these kinds (V100 ...), whose compute capabilities `arch` holds (7.0 ...)."""

    driver: str = ""
    older_drivers: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    arch: tuple[str, ...] = ()


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

    @property
    def version(self) -> str:
        """As in 24.12-hd-r3, or 24.12-hd-r3-flat."""
        return f"{self.tag}-{self.stack}-r{self.release}{FLAT if self.flat else ''}"

    @property
    def file_name(self) -> str:
        """As in pytorch_24.12-hd-py3-r3.sif, beside the habit of the sites."""
        return f"{self.name}_{self.tag}-{self.stack}-py3-r{self.release}{FLAT if self.flat else ''}.sif"

    @property
    def tested(self) -> bool:
        """Whether no test failed, and at least one was run."""
        outcomes = {test.outcome for test in self.tests}
        return "passed" in outcomes and "failed" not in outcomes


def read_manifest(path: Path) -> Manifest:
    """The manifest in a .json file. Raises ConfigError when it isn't one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a manifest: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is not a manifest")
    schema = data.get("schema", 1)
    if schema not in (1, SCHEMA):  # before its keys are read: a newer schema may well have others
        raise ConfigError(f"{path} has manifest schema {schema}", "Use a newer ctrain")
    return config.load(Manifest, {**data, "schema": SCHEMA}, str(path))


@dataclass(frozen=True)
class Published:
    """An image in a store: its manifest, its file, and the channels that point to it."""

    manifest: Manifest
    path: Path
    channels: tuple[str, ...]


@dataclass(frozen=True)
class Store:
    root: Path

    def images(self) -> list[Published]:
        """Every published image, by name, then oldest first."""
        channels = self._channels()
        found = [
            Published(manifest, path.with_suffix(".sif"), channels.get(path.with_suffix(".sif").name, ()))
            for path in sorted(self.root.glob("*_*.json"))
            for manifest in (read_manifest(path),)
        ]
        return sorted(found, key=lambda image: (image.manifest.name, image.manifest.published or "", image.path.name))

    def _channels(self) -> dict[str, tuple[str, ...]]:
        """File name of an image -> names of the channels that point to it."""
        targets: dict[str, tuple[str, ...]] = {}
        for link in sorted((self.root / CHANNELS).glob("*_*.sif")):
            if link.is_symlink():
                channel = link.stem.split("_", 1)[1]
                target = link.readlink().name
                targets[target] = (*targets.get(target, ()), channel)
        return targets


def open_store(root: Path) -> Store:
    """The store at `root`. Raises StoreError when the folder is not a store that this ctrain knows."""
    marker = root / MARKER
    try:
        layout: Any = json.loads(marker.read_text(encoding="utf-8"))["layout"]
    except FileNotFoundError as error:
        what = "is not a ctrain store: it has no " + MARKER if root.is_dir() else "does not exist"
        raise StoreError(f"{root} {what}", "Make one with: ctrain publish IMAGE --store DIR") from error
    except OSError as error:
        raise StoreError(f"{marker} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{marker} is damaged: it should hold a layout number") from error
    if layout != LAYOUT:
        raise StoreError(f"{root} has store layout {layout}; this ctrain knows layout {LAYOUT}", "Use a newer ctrain")
    return Store(root)


def pick(images: list[Published], name: str, wanted: str = "") -> Optional[Published]:
    """The image `name` that `wanted` (channel, version or digest) means; with none, channel prod, else the newest.

    A flat image is the substitute of its layered one, and not what a name alone means if there are others.
    """
    named = [image for image in images if image.manifest.name == name]
    if not wanted:
        prod = [image for image in named if DEFAULT_CHANNEL in image.channels]
        layered = [image for image in named if not image.manifest.flat]
        return (prod or layered or named)[-1] if named else None
    for image in named:
        if wanted in (*image.channels, image.manifest.version, image.manifest.digest):
            return image
    return None


def resolve(stores: list[Store], reference: str) -> Published:
    """The published image for NAME, NAME:CHANNEL, NAME:VERSION or NAME@DIGEST; the first store that has it wins.

    Raises ImageNotFound naming what there is.
    """
    name, wanted = reference.split("@", 1) if "@" in reference else (reference.partition(":")[::2])
    everything = [(store, store.images()) for store in stores]
    for _, images in everything:
        found = pick(images, name, wanted)
        if found:
            return found
    known = sorted(
        {
            i.manifest.name if not wanted else f"{i.manifest.name}:{i.manifest.version}"
            for _, im in everything
            for i in im
        }
    )
    where = ", ".join(str(store.root) for store in stores) or "any store (none is set)"
    hint = (
        f"There are: {', '.join(known)}" if known else "Publish one with: ctrain publish, or name a store with --store"
    )
    raise ImageNotFound(f"image {reference!r} is not in {where}", hint)
