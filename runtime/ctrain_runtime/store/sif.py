"""Reads SIF image files without an engine: the header and the objects in them.

The layout (128-byte header, 585-byte descriptors, little-endian) is that of the SIF specification, version 01, as
written by Singularity 3.x and 4.x and every Apptainer.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from ctrain_runtime.errors import ImageUnusable

HEADER = struct.Struct("<32s10s3s3s16s8q")
DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
DEFINITION, PARTITION, SIGNATURE, SBOM = 0x4001, 0x4004, 0x4005, 0x4009  # object types
ARCHITECTURES = {"02": "amd64", "04": "arm64", "06": "ppc64le"}


@dataclass(frozen=True)
class SifObject:
    """An object in a SIF file. `offset` and `size` are in bytes; engines mount partitions in the order of `number`.

    `group` is the group that it is in, `link` the group or object that it is linked to, as in the file (0xF0000000 and
    the number of a group). `extra` is what its kind has besides, as the hash and the key of a signature.
    """

    kind: int
    number: int
    offset: int
    size: int
    extra: bytes = field(default=b"", repr=False)
    group: int = 0
    link: int = 0


@dataclass(frozen=True)
class Sif:
    arch: str
    entries: tuple[SifObject, ...]


def read(path: Path) -> Sif:
    """The header and objects of the SIF file `path`.

    Raises ImageUnusable if the file cannot be read, is not a SIF or is truncated.
    """
    try:
        with open(path, "rb", opener=_opener) as file:
            size = path.stat().st_size
            raw = file.read(HEADER.size) or b""
            if len(raw) < HEADER.size or HEADER.unpack(raw)[1] != b"SIF_MAGIC\0":
                raise ImageUnusable(f"{path} is not a SIF image", "Build one with: ctrain build")
            _, _, _, arch, _, _, _, _, total, offset, length, data_offset, data_size = HEADER.unpack(raw)
            if max(offset + length, data_offset + data_size) > size:
                raise _truncated(path, size, max(offset + length, data_offset + data_size))
            file.seek(offset)
            descriptors = [DESCRIPTOR.unpack(file.read(DESCRIPTOR.size)) for _ in range(total)]
    except struct.error as error:
        raise ImageUnusable(f"{path} has a damaged SIF header", "Copy or publish it again") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    entries = tuple(
        SifObject(kind, number, at, long, extra, group, link)
        for kind, used, number, group, link, at, long, *_, extra in descriptors
        if used
    )
    if any(min(entry.offset, entry.size) < 0 for entry in entries):
        raise ImageUnusable(f"{path} has a damaged SIF header", "Copy or publish it again")
    end = max((entry.offset + entry.size for entry in entries), default=0)
    if end > size:
        raise _truncated(path, size, end)
    name = ARCHITECTURES.get(arch[:2].decode("ascii", "replace"), "an unknown architecture")
    return Sif(name, tuple(sorted(entries, key=lambda entry: entry.number)))


def _opener(path: str, flags: int) -> int:
    """Opens a FIFO, too, without waiting for who writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def check(path: Path) -> str:
    """Check that `path` is a complete image and return its architecture (amd64, arm64 ...). Raises ImageUnusable."""
    image = read(path)
    if not any(entry.kind == PARTITION for entry in image.entries):
        raise ImageUnusable(f"SIF image {path} has no file system", "Build one with: ctrain build")
    return image.arch


def partitions(path: Path) -> tuple[SifObject, ...]:
    """The file-system partitions of an image, lowest first. Raises ImageUnusable."""
    return tuple(entry for entry in read(path).entries if entry.kind == PARTITION)


def object_bytes(path: Path, kind: int) -> Optional[bytes]:
    """The content of the first object of type `kind`; None if there is none. Raises ImageUnusable."""
    entry = next((entry for entry in read(path).entries if entry.kind == kind), None)
    return None if entry is None else entry_bytes(path, entry)


def entry_bytes(path: Path, entry: SifObject) -> bytes:
    """The content of an object. Raises ImageUnusable."""
    try:
        with path.open("rb") as file:
            file.seek(entry.offset)
            return file.read(entry.size)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ImageUnusable:
    hint = "Check its name" if isinstance(error, FileNotFoundError) else "Check its permissions"
    return ImageUnusable(f"cannot read {path}: {error.strerror}", hint)


def _truncated(path: Path, size: int, needed: int) -> ImageUnusable:
    return ImageUnusable(f"{path} is truncated: {size} bytes of {needed}", "Copy or publish it again")
