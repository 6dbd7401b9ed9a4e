"""What the images of a store take on its disk, and what they share there."""

from __future__ import annotations

import array
import fcntl
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

_FIEMAP = 0xC020660B  # ioctl; linux/fiemap.h, filesystems/fiemap.rst
_HEAD = struct.Struct("=QQLLLL")
_EXTENT = struct.Struct("=QQQ2QL3L")
_SYNC, _LAST = 0x1, 0x1  # a request's flag, an extent's flag
_AT_ONCE = 500
Extent = tuple[int, int]  # where it begins and ends on the disk, in bytes


@dataclass(frozen=True)
class Usage:
    """Bytes of a file: its `size`, and how many of those other files have, too; None where that can't be told."""

    path: Path
    size: int
    shared: Optional[int]


def usage(paths: Sequence[Path]) -> tuple[list[Usage], int]:
    """What each of some files takes and shares with the others; and what they take together, where that is known."""
    on_disk = {path: extents(path) for path in paths}
    everything = [extent for own in on_disk.values() for extent in own or ()]
    twice = _places(everything, 2)
    files = [
        Usage(path, path.stat().st_size, None if own is None else _size(_places([*_places(own, 1), *twice], 2)))
        for path, own in on_disk.items()
    ]
    unknown = sum(one.size for one in files if one.shared is None)
    return files, unknown + _size(_places(everything, 1))


def extents(path: Path) -> Optional[list[Extent]]:
    """Where a file is on its disk, by the ioctl FIEMAP; None when its file system doesn't tell."""
    parts: list[Extent] = []
    start = 0
    with path.open("rb") as file:
        while True:
            buffer = array.array("B", bytes(_HEAD.size + _AT_ONCE * _EXTENT.size))
            _HEAD.pack_into(buffer, 0, start, (1 << 64) - 1 - start, _SYNC, 0, _AT_ONCE, 0)
            try:
                fcntl.ioctl(file, _FIEMAP, buffer, True)
            except OSError:
                return None
            count = _HEAD.unpack_from(buffer)[3]
            for number in range(count):
                logical, physical, length, _, _, flags, *_ = _EXTENT.unpack_from(
                    buffer, _HEAD.size + number * _EXTENT.size
                )
                parts.append((physical, physical + length))
                start = logical + length
                if flags & _LAST:
                    return parts
            if not count:
                return parts


def _places(extents: Iterable[Extent], times: int) -> list[Extent]:
    """What is in at least so many of the extents: in order, and apart from each other."""
    steps = sorted(step for start, end in extents for step in ((start, 1), (end, -1)))
    places: list[Extent] = []
    depth = begun = 0
    for place, step in steps:
        before, depth = depth, depth + step
        if before < times <= depth:
            begun = place
        elif depth < times <= before and place > begun:
            places.append((begun, place))
    return places


def _size(extents: Iterable[Extent]) -> int:
    return sum(end - start for start, end in extents)
