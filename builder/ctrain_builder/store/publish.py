"""Puts an image into a store. The format and the read side are in ctrain_runtime.store.

The order makes every crash harmless: copy under a temporary name, compare the digest, make it durable, give it its
name, then the manifest (from here on the image counts), then the channel. What a crash leaves are names that start with
a dot, or a .sif without a .json.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ctrain_builder import atomic, record
from ctrain_runtime.errors import ImageDamaged, ImageTestError, SpaceError, StoreError, UsageError
from ctrain_runtime.store import CHANNELS, LAYOUT, MARKER, WORD, Manifest, Published, Store, open_store

_LOCK = ".ctrain-store.lock"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """`new_store`: it was made for this. `new_version`: False when the store had the same digest already."""

    image: Published
    new_store: bool
    new_version: bool


@dataclass(frozen=True)
class Access:
    """Modes and group for what is written: those of the store's root, whatever the umask. Never world-writable."""

    root: os.stat_result

    @property
    def folder(self) -> int:
        return stat.S_IMODE(self.root.st_mode) & ~stat.S_IWOTH

    @property
    def file(self) -> int:
        return stat.S_IMODE(self.root.st_mode) & 0o444

    @property
    def shared_file(self) -> int:
        return self.folder & 0o666

    @property
    def group(self) -> int:
        return self.root.st_gid


def publish(image: Path, manifest: Manifest, root: Path, channel: str = "") -> Outcome:
    """Copy a tested image into the store at `root` under its next release number; move `channel` to it if given.

    Raises ImageTestError, ImageDamaged, StoreError, SpaceError, UsageError.
    """
    if channel and not WORD.fullmatch(channel):
        raise UsageError(f"{channel!r} is not a channel name", "Use letters, digits, '.' and '-'")
    if not manifest.tested:
        raise ImageTestError(f"image {image} has not passed its tests", "Build it again with: ctrain build")
    try:
        new_store = _prepare(root)
        access = Access(root.stat())
        store = open_store(root)
        with _lock(root, access):
            known = [found for found in store.images() if _is_same(found.manifest, manifest)]
            published = known[-1] if known else _add(image, manifest, store, access)
            if channel:
                _point(root / CHANNELS, channel, published, access)
    except PermissionError as error:
        raise StoreError(f"store {root} can't be written: {error.filename or error}", "Ask its owner") from error
    channels = tuple(sorted({*published.channels, channel} - {""}))
    return Outcome(replace(published, channels=channels), new_store, not known)


def _is_same(one: Manifest, other: Manifest) -> bool:
    """Whether two images are the same: the same file, or put together once more from the same layers."""
    if one.name != other.name or one.flat != other.flat:
        return False
    layers = [[(layer.definition, layer.digest) for layer in manifest.layers] for manifest in (one, other)]
    return one.digest == other.digest or (layers[0] == layers[1] and all(digest for _, digest in layers[0]))


def _prepare(root: Path) -> bool:
    """Make an absent or empty folder a store; True if it was made one. A folder with other things in it is refused."""
    if not root.exists():
        root.mkdir(parents=True)
        root.chmod(0o755)
    if (root / MARKER).exists():
        return False
    others = [path.name for path in root.iterdir() if not path.name.startswith(f".{MARKER}")]
    if others:
        raise StoreError(
            f"{root} is not empty and not a store (it has {others[0]})", "Choose an empty or absent folder"
        )
    access = Access(root.stat())
    atomic.write_text(root / MARKER, json.dumps({"layout": LAYOUT}) + "\n", access.file, access.group)
    return True


@contextlib.contextmanager
def _lock(root: Path, access: Access) -> Iterator[None]:
    """Hold the store's lock, so that two publishers don't take the same number."""
    descriptor = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, access.shared_file)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _add(image: Path, manifest: Manifest, store: Store, access: Access) -> Published:
    """Copy the image in and give it the next number."""
    root = store.root
    free = shutil.disk_usage(root).free
    if free < manifest.size:
        raise SpaceError(
            f"store {root} has {free / 1e9:.1f} GB free, the image has {manifest.size / 1e9:.1f} GB",
            "Free some space there",
        )
    last = max(
        (found.manifest.release for found in store.images() if _series(found.manifest) == _series(manifest)), default=0
    )
    descriptor, name = tempfile.mkstemp(prefix=f".{image.name}.", suffix=".part", dir=root)
    temporary = Path(name)
    try:
        if _copy(image, descriptor, access) != manifest.digest:
            raise ImageDamaged(
                f"{image} has changed since it was built and tested", "Build it again with: ctrain build"
            )
        for release in itertools.count(last + 1):
            numbered = replace(manifest, release=release, published=record.utc_now())
            path = root / numbered.file_name
            # link, unlike rename, never replaces: a file of that name, published or left by a crash, keeps it
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
                break
    finally:
        temporary.unlink(missing_ok=True)
    atomic.sync_folder(root)
    record.write(path.with_suffix(".json"), numbered, access.file, access.group)
    return Published(numbered, path, ())


def _series(manifest: Manifest) -> tuple[str, str, str]:
    """What all releases of an image have in common."""
    return manifest.name, manifest.tag, manifest.stack


def _copy(source: Path, target: int, access: Access) -> str:
    """Copy durably, with the store's mode and group; the digest of what was copied."""
    sha = hashlib.sha256()
    with open(target, "wb") as writer, source.open("rb") as reader:  # a descriptor, no path
        while chunk := reader.read(_CHUNK):
            sha.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fchown(writer.fileno(), -1, access.group)
        os.fchmod(writer.fileno(), access.file)
        os.fsync(writer.fileno())
    return f"sha256:{sha.hexdigest()}"


def _point(channels: Path, channel: str, published: Published, access: Access) -> None:
    """Make the channel's link point to the image, replacing it in one step."""
    if not channels.exists():
        channels.mkdir()
        channels.chmod(access.folder)
    link = channels / f"{published.manifest.name}_{channel}.sif"
    temporary = channels / f".{link.name}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(Path("..") / published.path.name)
    temporary.replace(link)
    atomic.sync_folder(channels)
