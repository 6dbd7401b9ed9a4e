"""The read side of a store: a plain directory of published images. Format: docs/store-format.md.

    STORE/ctrain-store.json                         marker file with the layout version
    STORE/pytorch-cpu_2.13.0-hd-py3-r1.sif          an image, immutable
    STORE/pytorch-cpu_2.13.0-hd-py3-r1.json         its manifest
    STORE/channels/pytorch-cpu_prod.sif             a channel: a relative symlink to an image
    STORE/retired/pytorch-cpu_2.13.0-hd-py3-r0.json the manifest of a retired image
    STORE/quarantine/                               damaged files
    STORE/pytorch-cpu_2.13.0-hd-py3-r2.withdrawn    why a version was withdrawn
    STORE/signatures/                               signatures that were added later
    STORE/scans/, STORE/deprecated/                 what was noted of versions later: see notes

Readers take no lock: an image is published once its manifest exists, which is renamed into place last.
"""

from __future__ import annotations

import json
import re
import shlex
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.errors import ConfigError, StoreError
from ctrain_runtime.store import notes, signatures
from ctrain_runtime.store.manifest import Manifest, Unchecked, read_manifest, version_of
from ctrain_runtime.store.notes import DEPRECATED, SCANS, Deprecation, Scan

STORE_MARKER, STORE_LOG = "ctrain-store.json", "ctrain-store.log"
LAYOUT_VERSION = 1
CHANNELS, RETIRED, QUARANTINE = "channels", "retired", "quarantine"
WITHDRAWN = ".withdrawn"  # suffix of a file with the reason; channels of the version point to it
DEFAULT_CHANNEL = "prod"
NAME_RE = re.compile(r"[a-z0-9][a-z0-9-]*")
TAG_RE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")  # tags, stacks and channels; never a path


@dataclass(frozen=True)
class PublishedImage:
    """A published image: its manifest, its file, and the channels that point to it.

    `has_added_signature`: it was signed after it was published. `scan`, `deprecation`: what was noted of it later.
    """

    manifest: Manifest
    path: Path
    channels: tuple[str, ...]
    has_added_signature: bool = False
    scan: Optional[Scan] = None
    deprecation: Optional[Deprecation] = None

    @property
    def signed(self) -> bool:
        return self.manifest.signed or self.has_added_signature


@dataclass(frozen=True)
class DanglingChannel:
    """A channel of the image `name` that points to no published version, and the reason."""

    name: str
    channel: str
    problem: str

    def error(self) -> StoreError:
        hint = f"Ask the store's owner to run: ctrain store promote {self.name} VERSION {self.channel}"
        return StoreError(str(self), f"{hint}; list versions with: ctrain images")

    def __str__(self) -> str:
        return f"channel {self.channel} of {self.name} {self.problem}"


@dataclass(frozen=True)
class StoreContents:
    """The images of a store; `damaged` has an error for each manifest or image that is unusable."""

    images: tuple[PublishedImage, ...]
    damaged: tuple[ConfigError, ...]
    dangling: tuple[DanglingChannel, ...] = ()


@dataclass(frozen=True)
class Store:
    root: Path

    def images(self) -> tuple[PublishedImage, ...]:
        """Every published image, by name, then oldest first."""
        return self.scan().images

    def scan(self) -> StoreContents:
        """The current contents of the store. A damaged entry does not hide the others. Raises StoreError."""
        contents = self._read()
        while contents.dangling:  # or the channel was moved, and the old version retired, while this was read
            again = self._read()
            if again.dangling == contents.dangling:
                break
            contents = again
        return contents

    def _read(self) -> StoreContents:
        targets = {link: channel_target(link) for link in list_directory(self.root / CHANNELS, "*_*.sif")}
        channels: dict[str, tuple[str, ...]] = {}
        for link, target in targets.items():
            channels[target] = (*channels.get(target, ()), _channel(link)[1])
        signed = signatures.signed_stems(self.root)
        noted = {
            (kind, path.stem) for kind in (SCANS, DEPRECATED) for path in list_directory(self.root / kind, "*_*.json")
        }
        images, damaged = [], {}
        for path in list_directory(self.root, "*_*.json"):
            image = path.with_suffix(".sif")
            try:
                manifest = self._manifest(path)
                images.append(PublishedImage(manifest, image, channels.get(image.name, ()), image.stem in signed))
                if (SCANS, image.stem) in noted:
                    images[-1] = replace(images[-1], scan=notes.read_scan(image, manifest))
                if (DEPRECATED, image.stem) in noted:
                    images[-1] = replace(images[-1], deprecation=notes.read_deprecation(image, manifest))
            except ConfigError as error:
                if not is_gone(path):  # else it was retired while the directory was read
                    damaged[path.stem] = error
        images.sort(key=lambda image: (image.manifest.name, image.manifest.published or "", image.manifest.release))
        published = {image.path.name for image in images}
        dangling = [
            DanglingChannel(*_channel(link), self._why_dangling(target, damaged))
            for link, target in targets.items()
            if target not in published
        ]
        return StoreContents(tuple(images), tuple(damaged.values()), tuple(dangling))

    def _why_dangling(self, target: str, damaged: Mapping[str, ConfigError]) -> str:
        if not target:
            return "is not a symlink to an image in the store"
        stem = Path(target).stem
        problem = damaged[stem].message if stem in damaged else f"it {self.absence(stem) or 'does not exist'}"
        return f"points to {version_of(stem) or target}: {problem}"

    def absence(self, stem: str) -> str:
        """Why the version with this file name (without suffix) is not published, as in "was retired"; "" if unknown."""
        try:
            reason = " ".join((self.root / f"{stem}{WITHDRAWN}").read_text("utf-8", "replace").split())
            return f"was withdrawn: {''.join(filter(str.isprintable, reason))}"
        except FileNotFoundError:
            is_removed = all(is_gone(place / f"{stem}.sif") for place in (self.root, self.root / QUARANTINE))
            for directory, state in ((RETIRED, "was retired"), (QUARANTINE, "is damaged and in quarantine")):
                if not is_gone(self.root / directory / f"{stem}.json"):
                    return "was removed" if is_removed else state
            return ""
        except OSError as error:
            return f"cannot be checked: {error.strerror}"

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


def list_directory(directory: Path, pattern: str) -> list[Path]:
    """The sorted paths in a directory of a store that match; none if it does not exist.

    Raises StoreError: what cannot be listed must not look empty.
    """
    try:
        paths = list(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot list {directory}: {error.strerror}", "Retry, or ask the store's owner") from error
    hidden = pattern.startswith(".")
    return sorted(path for path in paths if path.match(pattern) and path.name.startswith(".") == hidden)


def _channel(link: Path) -> tuple[str, str]:
    """The image and the channel that a link is named after."""
    name, _, channel = link.stem.partition("_")
    return name, channel


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


def is_gone(path: Path) -> bool:
    """Whether a file is certainly not there: False also if that cannot be found out."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise Unchecked(f"cannot read {path}: {error.strerror}") from error


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
    except NotADirectoryError as error:
        raise StoreError(f"{root} is a file, not the directory of a store", "Pass --store DIR") from error
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
