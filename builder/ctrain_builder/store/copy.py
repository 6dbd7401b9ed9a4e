"""Copies an image into a store: in one pass, durably, and sharing blocks with what is there where disks can do that."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import queue
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Optional

from ctrain_builder.cache import amount
from ctrain_builder.digests import Reading, regions
from ctrain_builder.store.writer import Access
from ctrain_runtime import command, sif
from ctrain_runtime.errors import ImageDamaged, SpaceError
from ctrain_runtime.manifest import Layer, Manifest
from ctrain_runtime.store import Published

_CHUNK = 4 << 20
_AHEAD = 4  # chunks that are read and not yet hashed
_BLOCK = 4096  # of file systems that copy by reference; SIFs align partitions to it
_FICLONERANGE = 0x4020940D  # ioctl_ficlonerange(2)
_RANGE = struct.Struct("=qQQQ")
# Stripes for files of which some are large and some small: facts of CSCS, who keep images on Lustre.
_STRIPES = ("-E", "4M", "-c", "1", "-E", "64M", "-c", "4", "-E", "-1", "-c", "-1", "-S", "4M")


@dataclass(frozen=True)
class Source:
    """A part of an image that another file holds: its `size` bytes at `offset` are those at `start` there."""

    offset: int
    size: int
    path: Path
    start: int


@dataclass(frozen=True)
class Copied:
    """The digests of what was copied: of the file, and of its regions (see ctrain_builder.digests)."""

    digest: str
    regions: str


@contextlib.contextmanager
def temporary(folder: Path, name: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
    """A new file in `folder` whose name begins with a dot, gone at the end. On Lustre, `say` tells of its stripes."""
    descriptor, given = tempfile.mkstemp(prefix=f".{name}.", suffix=".part", dir=folder)
    os.close(descriptor)
    path = Path(given)
    try:
        if is_lustre(folder):
            path.unlink()  # stripes are given to a file when it is made
            command.run(["lfs", "setstripe", *_STRIPES, given])
            say("Lustre: one stripe up to 4 MB, four up to 64 MB, then one on each of its targets")
        yield path
    finally:
        path.unlink(missing_ok=True)


def is_lustre(folder: Path) -> bool:
    said = command.run(["stat", "--file-system", "--format=%T", str(folder)], check=False).stdout
    return said.strip() == "lustre" and command.find("lfs") is not None


def shared(image: Path, manifest: Manifest, others: Iterable[Published]) -> list[Source]:
    """Where the layers of an image are in images that are published already."""
    if manifest.flat:
        return []
    known: dict[str, tuple[Path, sif.Entry]] = {}
    for other in others:
        if other.manifest.flat:
            continue
        with contextlib.suppress(ImageDamaged):
            for layer, entry in zip(other.manifest.layers, sif.partitions(other.path)):
                known[layer.digest] = other.path, entry
    found: list[Source] = []
    if not known:
        return found
    for layer, entry in zip(manifest.layers, sif.partitions(image)):
        path, there = known.get(layer.digest, (None, None))
        if layer.digest and path and there and there.size == entry.size:
            found.append(Source(entry.offset, entry.size, path, there.offset))
    return found


def copy(
    source: Path,
    target: Path,
    access: Access,
    layers: Sequence[Layer] = (),
    parts: Iterable[Source] = (),
    done: Callable[[int], None] = lambda _: None,
) -> Copied:
    """Make `target` the same as `source`, durably, with the store's mode and group; the digests of what is there then.

    `layers` are those of its partitions. `parts` are taken by reference where the file system can do that. `done` is
    told how many bytes are copied. Raises SpaceError, ImageDamaged.
    """
    with source.open("rb") as reader, target.open("r+b") as writer:
        size = os.fstat(reader.fileno()).st_size
        cloned = sorted(filter(None, (_clone(part, writer) for part in parts)))
        free, needed = shutil.disk_usage(target.parent).free, size - sum(end - start for start, end in cloned)
        if free < needed:
            what = f"store {target.parent} has {amount(free)} free, the image needs {amount(needed)}"
            raise SpaceError(what, "Free some: ctrain store gc")
        whole, reading = hashlib.sha256(), Reading(regions(source, layers) if layers else ())
        both = [_Aside(whole.update), *([_Aside(reading.update)] if layers else [])]
        try:
            at = 0
            for start, end in (*cloned, (size, size)):
                _pass(reader, writer, at, start, both, done)
                _pass(writer, None, start, end, both, done)  # what counts is what is in the store
                at = end
        finally:
            for aside in both:
                aside.close()
        writer.truncate(size)
    settle(target, access)
    return Copied(f"sha256:{whole.hexdigest()}", reading.digest())


def settle(file: Path, access: Access) -> None:
    """Give a file that is written the store's mode and group, and make it durable."""
    with file.open("rb") as opened:
        os.fchown(opened.fileno(), -1, access.group)
        os.fchmod(opened.fileno(), access.file)
        os.fsync(opened.fileno())


def _pass(
    reader: BinaryIO,
    writer: Optional[BinaryIO],
    start: int,
    end: int,
    both: Sequence[_Aside],
    done: Callable[[int], None],
) -> None:
    """Hash the bytes from `start` to `end`, and write them to the same place."""
    while start < end:
        chunk = os.pread(reader.fileno(), min(_CHUNK, end - start), start)
        if not chunk:
            return  # it became shorter: its digest will be another
        for aside in both:
            aside.add(chunk)
        written = 0
        while writer and written < len(chunk):
            written += os.pwrite(writer.fileno(), chunk[written:], start + written)
        start += len(chunk)
        done(start)


def _clone(part: Source, writer: BinaryIO) -> Optional[tuple[int, int]]:
    """Take whole blocks of a part by reference: where they begin and end. None where that can't be done."""
    size = part.size // _BLOCK * _BLOCK
    if not size or part.offset % _BLOCK or part.start % _BLOCK:
        return None
    with part.path.open("rb") as source:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONERANGE, _RANGE.pack(source.fileno(), part.start, size, part.offset))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            return None
    return part.offset, part.offset + size


class _Aside:
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
