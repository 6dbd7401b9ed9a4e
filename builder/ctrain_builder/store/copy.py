"""Copies an image into a store: in one pass, durably, and sharing blocks with what is there where disks can do that."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import queue
import shutil
import stat
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Optional

from ctrain_builder.files import atomic, locks
from ctrain_builder.files.digests import ReadAt, Region, RegionHasher, regions
from ctrain_builder.store.writer import Permissions
from ctrain_runtime.base import command
from ctrain_runtime.base.file_systems import mount_of
from ctrain_runtime.base.text import format_size
from ctrain_runtime.errors import DiskFullError, ImageUnusable
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import Layer, Manifest
from ctrain_runtime.store.store import PublishedImage

PART = ".part"  # ends the names of temporary files
_LOCK = ".lock"
_PART_LOCK = f"{PART}{_LOCK}"
_CHUNK = 4 << 20
_AHEAD = 4  # chunks that are read and not yet hashed
_BLOCK = 4096  # of file systems that copy by reference; SIFs align partitions to it
_FICLONERANGE = 0x4020940D  # ioctl_ficlonerange(2)
_RANGE = struct.Struct("=qQQQ")
# Stripes for files of which some are large and some small: facts of CSCS, who keep images on Lustre.
_STRIPES = ("-E", "4M", "-c", "1", "-E", "64M", "-c", "4", "-E", "-1", "-c", "-1", "-S", "4M")


@dataclass(frozen=True)
class Copied:
    """The digests of what was copied: of the file, and of its regions (see ctrain_builder.files.digests)."""

    digest: str
    regions: str


@contextlib.contextmanager
def temporary(root: Path, name: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
    """A new file in the store at `root` whose name starts with a dot, removed at the end. `say` is told of stripes.

    Its lock keeps it from `gc` of all machines. The store's lock is not held meanwhile.
    """
    path = atomic.unfinished(root / name)
    with _locked(root, path):
        try:
            _create(path, say)
            yield path
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def resumable_file(root: Path, name: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
    """As `temporary`, but the same file for each `name`: it may hold what an interrupted copy has left, and stays."""
    path = root / f".{name}{PART}"
    with _locked(root, path, lambda owner: say(f"waiting for {owner}, which is copying the same version")):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and (status.st_uid, status.st_nlink) == (os.geteuid(), 1):
                path.chmod(0o600)
            else:
                path.unlink()  # others may write to the directory, too: what we write goes to a file of ours
        if not path.exists():
            _create(path, say)
        yield path


def copier(part: Path) -> str:
    """Who, on whatever machine, may still be writing a temporary file of a store; "" if certainly nobody."""
    return locks.holder(_lock_of(part))


def discard(part: Path) -> bool:
    """Remove a temporary file of a store unless somebody is writing it. Whether it was removed."""
    return locks.remove_unheld(_lock_of(part), part)


def _lock_of(part: Path) -> Path:
    return part if part.name.endswith(_PART_LOCK) else part.with_name(f"{part.name}{_LOCK}")


def _locked(
    root: Path, part: Path, waiting: Callable[[str], None] = lambda _: None
) -> contextlib.AbstractContextManager[None]:
    access = Permissions(root.stat())
    return locks.hold(_lock_of(part), waiting, mode=access.shared_file, group=access.group, machines=True)


def _create(path: Path, say: Callable[[str], None]) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    _stripe(path, say)


def resume_offset(path: Path) -> int:
    """How many bytes an interrupted copy has certainly written: up to the first hole, in whole blocks."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return 0
        return max(0, os.lseek(file.fileno(), 0, os.SEEK_HOLE) - 1) // _BLOCK * _BLOCK


def _stripe(path: Path, say: Callable[[str], None]) -> None:
    if is_lustre(path.parent):
        path.unlink()  # stripes are given to a file when it is made
        command.run(["lfs", "setstripe", *_STRIPES, str(path)])
        say("Lustre: one stripe up to 4 MB, four up to 64 MB, then one on each of its targets")


def is_lustre(directory: Path) -> bool:
    return mount_of(directory).kind == "lustre" and command.which("lfs") is not None


def shared(image: Path, manifest: Manifest, others: Iterable[PublishedImage]) -> dict[int, Region]:
    """Where the layers of an image are in images that are published already."""
    if manifest.flat:
        return {}
    known: dict[str, Region] = {}
    for other in others:
        if other.manifest.flat:
            continue
        with contextlib.suppress(ImageUnusable):
            for layer, entry in zip(other.manifest.layers, sif.partitions(other.path)):
                known[layer.digest] = Region(other.path, entry.offset, entry.size, layer.digest)
    pairs = zip(manifest.layers, sif.partitions(image)) if known else ()
    matches = ((entry, known.get(layer.digest)) for layer, entry in pairs if layer.digest)
    return {entry.offset: region for entry, region in matches if region and region.size == entry.size}


def copy(
    source: Path,
    target: Path,
    access: Permissions,
    layers: Sequence[Layer] = (),
    known: Mapping[int, Region] = {},
    done: Callable[[int], None] = lambda _: None,
) -> Copied:
    """Make `target` the same as `source`, durably, with the store's mode and group; the digests of what is there then.

    `layers` are those of its partitions. The rest is as in `fill`. Raises DiskFullError, ImageUnusable.
    """
    with source.open("rb") as reader:
        layout = regions(source, layers) if layers else ()
        size = os.fstat(reader.fileno()).st_size
        return fill(target, size, functools.partial(os.pread, reader.fileno()), access, layout, known, done)


def fill(
    target: Path,
    size: int,
    read: ReadAt,
    access: Permissions,
    layout: Sequence[Region] = (),
    known: Mapping[int, Region] = {},
    done: Callable[[int], None] = lambda _: None,
    present: int = 0,
) -> Copied:
    """Give `target` the `size` bytes that `read` brings. The first `present` bytes of it are only read: it has them.

    What other files have of it, by where it begins here, is taken from there by reference if the file system can do
    that: `known`. `done` is told how many bytes are copied. The digests are those of what is there then, that of the
    regions only with a `layout`. Raises DiskFullError.
    """
    with target.open("r+b") as writer:
        own = functools.partial(os.pread, writer.fileno())
        kept = [(0, present), *sorted(filter(None, (_clone(at, region, writer) for at, region in known.items())))]
        pieces = list(_pieces(kept, size))
        free = shutil.disk_usage(target.parent).free
        needed = sum(end - start for start, end, has in pieces if not has)
        if free < needed:
            what = f"store {target.parent} has {format_size(free)} free, the image needs {format_size(needed)}"
            raise DiskFullError(what, "Free disk space: ctrain store gc")
        whole, reading = hashlib.sha256(), RegionHasher(layout)
        both = [_HashThread(whole.update), *([_HashThread(reading.update)] if layout else [])]
        try:
            for start, end, has in pieces:  # what counts is what is in the store
                _pass(own if has else read, None if has else writer, start, end, both, done)
        finally:
            for aside in both:
                aside.close()
        writer.truncate(size)
    finalise(target, access)
    return Copied(f"sha256:{whole.hexdigest()}", reading.digest())


def finalise(file: Path, access: Permissions) -> None:
    """Give a file that is written the store's mode and group, and make it durable."""
    with file.open("rb") as opened:
        os.fchown(opened.fileno(), -1, access.group)
        os.fchmod(opened.fileno(), access.file)
        os.fsync(opened.fileno())


def _pieces(kept: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int, bool]]:
    """All of a file, from the first byte to the last: where each piece begins and ends, and whether it is kept."""
    at = 0
    for start, end in (*kept, (size, size)):
        if at < start:
            yield at, start, False
        if max(at, start) < end:
            yield max(at, start), end, True
        at = max(at, end)


def _pass(
    read: ReadAt,
    writer: Optional[BinaryIO],
    start: int,
    end: int,
    both: Sequence[_HashThread],
    done: Callable[[int], None],
) -> None:
    """Hash the bytes from `start` to `end`, and write them to the same place."""
    while start < end:
        chunk = read(min(_CHUNK, end - start), start)
        if not chunk:
            return  # it became shorter: its digest will be another
        for aside in both:
            aside.add(chunk)
        written = 0
        while writer and written < len(chunk):
            written += os.pwrite(writer.fileno(), chunk[written:], start + written)
        start += len(chunk)
        done(start)


def _clone(offset: int, region: Region, writer: BinaryIO) -> Optional[tuple[int, int]]:
    """Take whole blocks of a region by reference: where they begin and end. None where that can't be done."""
    size = region.size // _BLOCK * _BLOCK
    if not size or offset % _BLOCK or region.offset % _BLOCK:
        return None
    try:
        with region.path.open("rb") as source:
            fcntl.ioctl(writer.fileno(), _FICLONERANGE, _RANGE.pack(source.fileno(), region.offset, size, offset))
    except OSError as error:  # also of a version that `gc` has just removed
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        return None
    return offset, offset + size


class _HashThread:
    """Gives chunks to a function in a thread of its own: a digest is computed while a disk is written."""

    def __init__(self, function: Callable[[bytes], None]) -> None:
        self._function = function
        self._chunks: queue.Queue[Optional[bytes]] = queue.Queue(_AHEAD)
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def add(self, chunk: bytes) -> None:
        self._chunks.put(chunk)

    def close(self) -> None:
        """Wait until it has had all."""
        self._chunks.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            self._function(chunk)
