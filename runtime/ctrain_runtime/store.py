"""The read side of a store: a plain directory of published images. Format: docs/store.md.

    STORE/ctrain-store.json                         marker with the layout's version
    STORE/pytorch-cpu_2.13.0-hd-py3-r1.sif          an image, immutable
    STORE/pytorch-cpu_2.13.0-hd-py3-r1.json         its manifest
    STORE/channels/pytorch-cpu_prod.sif             a channel: a relative link to an image
    STORE/bases/pytorch-cpu_9f2c41d0a7e3.sif        the base of thin images: what lies below the .sif of a version
    STORE/retired/pytorch-cpu_2.13.0-hd-py3-r0.json the manifest of an image that is no longer offered
    STORE/quarantine/                               what was found damaged

Readers take no lock: an image counts only when its manifest is there, and the manifest is renamed into place last.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.errors import ConfigError, ImageNotFound, StoreError
from ctrain_runtime.manifest import Manifest, read_manifest

STORE_MARKER = "ctrain-store.json"
LAYOUT = 1
CHANNELS, BASES, RETIRED, QUARANTINE = "channels", "bases", "retired", "quarantine"
DEFAULT_CHANNEL = "prod"
NAME_RE = re.compile(r"[a-z0-9][a-z0-9-]*")
TAG_RE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")  # tags, stacks and channels: never a path


@dataclass(frozen=True)
class PublishedImage:
    """An image in a store: its manifest, its file, and the channels that point to it."""

    manifest: Manifest
    path: Path
    channels: tuple[str, ...]


@dataclass(frozen=True)
class StoreContents:
    """What was found in a store; `damaged` says what is wrong with the rest."""

    images: tuple[PublishedImage, ...]
    damaged: tuple[ConfigError, ...]


@dataclass(frozen=True)
class Store:
    root: Path

    def images(self) -> tuple[PublishedImage, ...]:
        """Every published image, by name, then oldest first."""
        return self.scan().images

    def scan(self) -> StoreContents:
        """What is in the store now. One damaged entry hides no other."""
        channels = self._channels()
        found, damaged = [], []
        for path in sorted(self.root.glob("*_*.json")):
            try:
                manifest = self._manifest(path)
            except ConfigError as error:
                if path.exists():  # else it was retired since the folder was read
                    damaged.append(error)
                continue
            image = path.with_suffix(".sif")
            found.append(PublishedImage(manifest, image, channels.get(image.name, ())))
        found.sort(key=lambda one: (one.manifest.name, one.manifest.published or "", one.manifest.release))
        return StoreContents(tuple(found), tuple(damaged))

    def _manifest(self, path: Path) -> Manifest:
        """A manifest that has its image beside it. No file is a link: those could lead out of the store."""
        manifest = read_manifest(path)
        image = path.with_suffix(".sif")
        if manifest.file_name != image.name:
            raise ConfigError(f"{path} is the manifest of {manifest.file_name}")
        below = [self.root / BASES / manifest.below.name] if manifest.below else []
        for file in (path, image, *below):
            if not stat.S_ISREG(_mode(file)):
                raise ConfigError(f"{file} is missing, or no plain file")
        return manifest

    def _channels(self) -> dict[str, tuple[str, ...]]:
        """File name of an image -> names of the channels that point to it."""
        targets: dict[str, tuple[str, ...]] = {}
        for link in sorted((self.root / CHANNELS).glob("*_*.sif")):
            target = channel_target(link)
            if target:
                targets[target] = (*targets.get(target, ()), link.stem.split("_", 1)[1])
        return targets


def channel_target(link: Path) -> str:
    """The file name of the image that a channel points to; "" for what is no channel."""
    try:
        up, _, name = str(link.readlink()).partition("/")
    except OSError:  # no link, or none any more
        return ""
    return name if up == ".." and "/" not in name else ""


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def open_store(root: Path) -> Store:
    """The store at `root`. Raises StoreError when the folder is not a store that this ctrain knows."""
    marker = root / STORE_MARKER
    try:
        layout: Any = json.loads(marker.read_text(encoding="utf-8"))["layout"]
    except FileNotFoundError as error:
        what = "is not a ctrain store: it has no " + STORE_MARKER if root.is_dir() else "does not exist"
        raise StoreError(f"{root} {what}", "Make one with: ctrain publish IMAGE --store DIR") from error
    except OSError as error:
        raise StoreError(f"{marker} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{marker} is damaged: it should hold a layout number") from error
    if layout != LAYOUT:
        raise StoreError(f"{root} has store layout {layout}; this ctrain knows layout {LAYOUT}", "Use a newer ctrain")
    return Store(root)


def select(images: Sequence[PublishedImage], name: str, wanted: str = "") -> Optional[PublishedImage]:
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


def resolve(stores: list[Store], reference: str) -> PublishedImage:
    """The published image for NAME, NAME:CHANNEL, NAME:VERSION or NAME@DIGEST; the first store that has it wins.

    Raises ImageNotFound naming what there is.
    """
    name, wanted = reference.split("@", 1) if "@" in reference else (reference.partition(":")[::2])
    scans = [store.scan() for store in stores]
    for scan in scans:
        found = select(scan.images, name, wanted)
        if found:
            return found
    manifests = [image.manifest for scan in scans for image in scan.images]
    known = sorted({f"{one.name}:{one.version}" if wanted else one.name for one in manifests})
    where = ", ".join(str(store.root) for store in stores) or "any store (none is set)"
    hint = (
        f"There are: {', '.join(known)}" if known else "Publish one with: ctrain publish, or name a store with --store"
    )
    damaged = [str(error) for scan in scans for error in scan.damaged]
    raise ImageNotFound(f"image {reference!r} is not in {where}", "; ".join([hint, *damaged]))
