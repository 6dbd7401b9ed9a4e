"""The read side of a store: a plain directory of published images. Format: docs/store.md.

    STORE/ctrain-store.json                         marker file with the layout version
    STORE/pytorch-cpu_2.13.0-hd-py3-r1.sif          an image, immutable
    STORE/pytorch-cpu_2.13.0-hd-py3-r1.json         its manifest
    STORE/channels/pytorch-cpu_prod.sif             a channel: a relative symlink to an image
    STORE/retired/pytorch-cpu_2.13.0-hd-py3-r0.json the manifest of a retired image
    STORE/quarantine/                               damaged files

Readers take no lock: an image is published once its manifest exists, which is renamed into place last.
"""

from __future__ import annotations

import json
import re
import shlex
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.errors import ConfigError, ImageNotFound, StoreError, UsageError
from ctrain_runtime.manifest import Manifest, read_manifest
from ctrain_runtime.suggest import closest, suggest

STORE_MARKER, STORE_LOG = "ctrain-store.json", "ctrain-store.log"
LAYOUT_VERSION = 1
CHANNELS, RETIRED, QUARANTINE = "channels", "retired", "quarantine"
DEFAULT_CHANNEL = "prod"
NAME_RE = re.compile(r"[a-z0-9][a-z0-9-]*")
TAG_RE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")  # tags, stacks and channels; never a path


@dataclass(frozen=True)
class PublishedImage:
    """A published image: its manifest, its file, and the channels that point to it."""

    manifest: Manifest
    path: Path
    channels: tuple[str, ...]


@dataclass(frozen=True)
class StoreContents:
    """The images of a store; `damaged` has an error for each manifest or image that is unusable."""

    images: tuple[PublishedImage, ...]
    damaged: tuple[ConfigError, ...]


@dataclass(frozen=True)
class Store:
    root: Path

    def images(self) -> tuple[PublishedImage, ...]:
        """Every published image, by name, then oldest first."""
        return self.scan().images

    def scan(self) -> StoreContents:
        """The current contents of the store. A damaged entry does not hide the others."""
        channels = self._channels()
        images, damaged = [], []
        for path in sorted(self.root.glob("*_*.json")):
            try:
                manifest = self._manifest(path)
            except ConfigError as error:
                if path.exists():  # else it was retired while the directory was read
                    damaged.append(error)
                continue
            image = path.with_suffix(".sif")
            images.append(PublishedImage(manifest, image, channels.get(image.name, ())))
        images.sort(key=lambda image: (image.manifest.name, image.manifest.published or "", image.manifest.release))
        return StoreContents(tuple(images), tuple(damaged))

    def _manifest(self, path: Path) -> Manifest:
        """The manifest at `path`, if its image exists. Symlinks are rejected: they could lead out of the store."""
        manifest = read_manifest(path)
        image = path.with_suffix(".sif")
        if manifest.file_name != image.name:
            raise ConfigError(f"{path} is the manifest of {manifest.file_name}")
        for file in (path, image):
            if not stat.S_ISREG(_mode(file)):
                raise ConfigError(f"{file} is missing or not a regular file")
        return manifest

    def _channels(self) -> dict[str, tuple[str, ...]]:
        """File name of an image -> names of its channels."""
        targets: dict[str, tuple[str, ...]] = {}
        for link in sorted((self.root / CHANNELS).glob("*_*.sif")):
            target = channel_target(link)
            if target:
                targets[target] = (*targets.get(target, ()), link.stem.split("_", 1)[1])
        return targets


def pending_manifest(image: Path) -> Path:
    """Where the manifest of an image that is being published lies until the image counts."""
    return image.with_name(f".{image.stem}.json.part")


def channel_target(link: Path) -> str:
    """The file name of the image that a channel points to; "" if `link` is not a channel."""
    try:
        up, _, name = str(link.readlink()).partition("/")
    except OSError:  # not a link, or removed meanwhile
        return ""
    return name if up == ".." and "/" not in name else ""


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def store_path(text: str) -> Path:
    """The directory of a store, as users name it. Raises UsageError for a URL, which is not a path."""
    if "://" in text:
        hint = "Copy versions from a registry to a store with: ctrain store sync"
        raise UsageError(f"a store must be a directory, not {text!r}", hint)
    return Path(text)


class MarkerNotFound(StoreError):
    """A directory without a marker file, or with a damaged one."""


def open_store(root: Path) -> Store:
    """The store at `root`. Raises MarkerNotFound for any other directory; StoreError for an unsupported layout."""
    marker = root / STORE_MARKER
    try:
        layout: Any = json.loads(marker.read_text(encoding="utf-8"))["layout"]
    except FileNotFoundError as error:
        problem = f"is not a store: {STORE_MARKER} not found" if root.is_dir() else "does not exist"
        raise MarkerNotFound(f"{root} {problem}", _init_hint(root)) from error
    except OSError as error:
        raise StoreError(f"cannot read {marker}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise MarkerNotFound(f"{marker} is damaged: layout number not found", _init_hint(root)) from error
    if layout != LAYOUT_VERSION:
        raise StoreError(f"unsupported store layout {layout} in {root} (supported: {LAYOUT_VERSION})", "Upgrade ctrain")
    return Store(root)


def has_store_files(root: Path) -> bool:
    """Whether a directory without a marker file was a store: it has a store's log, or an image with its manifest."""
    manifests = root.glob("*_*-py3-r*.json")
    return (root / STORE_LOG).exists() or any(path.with_suffix(".sif").exists() for path in manifests)


def _init_hint(root: Path) -> str:
    if has_store_files(root):
        return f"If it is a store whose marker was lost: ctrain store init {shlex.quote(str(root))} --repair"
    return f"Create a store with: ctrain store init {shlex.quote(str(root))}"


def open_stores(roots: Iterable[str]) -> list[Store]:
    """The stores at `roots`. Raises as open_store."""
    return [open_store(Path(root)) for root in roots]


def select(images: Sequence[PublishedImage], name: str, wanted: str = "") -> Optional[PublishedImage]:
    """The image `name` whose channel, version or digest is `wanted`; if "", that of channel prod, else the newest.

    Without `wanted`, a flat image is selected only if no layered one exists: it substitutes for the layered one.
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

    Raises ImageNotFound listing the available images.
    """
    name, wanted = reference.split("@", 1) if "@" in reference else (reference.partition(":")[::2])
    scans = [store.scan() for store in stores]
    for scan in scans:
        image = select(scan.images, name, wanted)
        if image:
            return image
    images = [image for scan in scans for image in scan.images]
    manifests = [image.manifest for image in images]
    available = sorted({f"{manifest.name}:{manifest.version}" if wanted else manifest.name for manifest in manifests})
    roots = ", ".join(str(store.root) for store in stores) or "any store (none configured)"
    publish = "Publish an image with: ctrain publish, or pass --store DIR"
    hint = f"{_suggestion(images, name, wanted)} Available: {', '.join(available)}".strip() if available else publish
    damaged = [str(error) for scan in scans for error in scan.damaged]
    raise ImageNotFound(f"image {reference!r} not found in {roots}", "; ".join([hint, *damaged]))


def _suggestion(images: list[PublishedImage], name: str, wanted: str) -> str:
    """ "Did you mean" a similar name, or of an existing name a similar version or channel; "" without any."""
    names = {image.manifest.name for image in images}
    if name not in names:
        return suggest(name, names)
    versions = [(image.manifest.version, *image.channels) for image in images if image.manifest.name == name]
    near = closest(wanted, (word for words in versions for word in words))
    return f"Did you mean '{name}:{near}'?" if near else ""
