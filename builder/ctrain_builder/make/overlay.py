"""Reads the upper folder of an overlay, and says what mksquashfs must change to make a portable layer of it.

Deleted names are marked by character devices 0:0, which every engine's overlay understands. "Opaque" folders, which
hide all that the layers below hold in them, are marked in ways that one kind of overlay alone understands: their marks
are dropped, and each hidden name gets a mark of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_MARK = ".wh."
_OPAQUE_MARKS = (".wh..opq", ".wh..wh..opq")
_OPAQUE_ATTRIBUTES = ("user.overlay.opaque", "trusted.overlay.opaque", "user.fuseoverlayfs.opaque")


@dataclass(frozen=True)
class Upper:
    """Paths relative to the root of the image. `deleted` are those marked by a `.wh.NAME` file."""

    folders: frozenset[PurePosixPath]
    others: frozenset[PurePosixPath]
    opaque: frozenset[PurePosixPath]
    deleted: frozenset[PurePosixPath]


def scan(root: Path) -> Upper:
    """What the upper folder `root` holds."""
    folders, others, opaque, deleted = set(), set(), set(), set()
    for path in _walk(root):
        relative = PurePosixPath(path.relative_to(root))
        if path.name in _OPAQUE_MARKS:
            opaque.add(relative.parent)
        elif path.name.startswith(_MARK):
            deleted.add(relative.with_name(path.name[len(_MARK) :]))
        elif path.is_dir() and not path.is_symlink():
            folders.add(relative)
            if _has_opaque_attribute(path):
                opaque.add(relative)
        else:
            others.add(relative)
    return Upper(frozenset(folders), frozenset(others), frozenset(opaque), frozenset(deleted))


def whiteouts(upper: Upper, below: Iterable[PurePosixPath]) -> list[PurePosixPath]:
    """The names to mark as deleted; `below` is all that the lower layers hold in the opaque folders.

    A name needs a mark when it isn't in the upper folder but the folder that it is in, is.
    """
    hidden = {path for path in below if path.parent in upper.folders} - upper.folders - upper.others
    return sorted(hidden | (upper.deleted - upper.folders - upper.others))


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root, onerror=_raise):
        yield from (Path(folder) / name for name in (*folders, *names))


def _raise(error: OSError) -> None:
    raise error


def _has_opaque_attribute(path: Path) -> bool:
    for name in _OPAQUE_ATTRIBUTES:
        with suppress(OSError):  # no such attribute, or a file system without any
            if os.getxattr(path, name, follow_symlinks=False) == b"y":
                return True
    return False
