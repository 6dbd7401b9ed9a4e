"""Reads a directory that is to be packed, and says what mksquashfs must change to make a portable layer of it.

Deleted names are marked by character devices 0:0, which every engine's overlay understands. "Opaque" directories, which
hide all that the layers below hold in them, are marked in ways that one kind of overlay alone understands: their marks
are dropped, and each hidden name gets a mark of its own.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from ctrain_builder.files.tree import Tree, unreadable

_MARK = ".wh."
_OPAQUE_MARKS = (".wh..opq", ".wh..wh..opq")
# What overlays (and tools that unpack images as an ordinary user) note in extended attributes for their own use.
_MARKS = ("user.overlay.", "trusted.overlay.", "user.fuseoverlayfs.", "user.containers.", "user.rootlesscontainers")
_OPAQUE, _ORIGIN = "opaque", "origin"


@dataclass(frozen=True)
class Upper:
    """Paths relative to the root of the image.

    `deleted` are those marked by a `.wh.NAME` file, `copied` the files that have come from below and were changed
    then, `marked` all that have an overlay's attributes.
    """

    directories: frozenset[PurePosixPath]
    others: frozenset[PurePosixPath]
    opaque: frozenset[PurePosixPath] = frozenset()
    deleted: frozenset[PurePosixPath] = frozenset()
    copied: frozenset[PurePosixPath] = frozenset()
    marked: frozenset[PurePosixPath] = frozenset()

    @property
    def names(self) -> frozenset[PurePosixPath]:
        return self.directories | self.others


def scan(tree: Tree) -> Upper:
    """What a directory holds. Raises BuildError for one that can't be looked into."""
    groups: dict[str, set[PurePosixPath]] = {field.name: set() for field in fields(Upper)}
    for entry in tree.walk():
        path = entry.name
        if path.name in _OPAQUE_MARKS:
            groups["opaque"].add(path.parent)
            continue
        if path.name.startswith(_MARK):
            groups["deleted"].add(path.with_name(path.name[len(_MARK) :]))
            continue
        groups["directories" if entry.is_directory else "others"].add(path)
        marks = _marks(entry.at)
        if marks:
            groups["marked"].add(path)
        if entry.is_file and any(mark.endswith(_ORIGIN) for mark in marks):
            groups["copied"].add(path)
        try:
            if any(mark.endswith(_OPAQUE) and _attribute(entry.at, mark) == b"y" for mark in marks):
                groups["opaque"].add(path)
        except PermissionError as error:
            raise unreadable(tree.root / path) from error
    return Upper(**{name: frozenset(paths) for name, paths in groups.items()})


def whiteouts(upper: Upper, below: Iterable[PurePosixPath]) -> list[PurePosixPath]:
    """The names to mark as deleted; `below` is all that the lower layers hold in the opaque directories.

    A name needs a mark when it isn't in the upper directory but the directory that it is in, is.
    """
    hidden = {path for path in below if path.parent in upper.directories} | upper.deleted
    return sorted(hidden - upper.names)


def remove_marks(tree: Tree, upper: Upper) -> None:
    """Remove the overlay's attributes, so that no other overlay takes them for its own."""
    for name in upper.marked:
        with tree.at(name) as path, writable(path):
            for mark in _marks(path):
                os.removexattr(path, mark, follow_symlinks=False)


@contextlib.contextmanager
def writable(path: str) -> Iterator[None]:
    """Let a file or directory be writable for its owner for a while."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode) or mode & stat.S_IWUSR:
        yield
        return
    Path(path).chmod(stat.S_IMODE(mode | stat.S_IWUSR))
    try:
        yield
    finally:
        Path(path).chmod(stat.S_IMODE(mode))


def _marks(path: str) -> list[str]:
    try:
        return [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith(_MARKS)]
    except OSError:  # a file system without attributes
        return []


def _attribute(path: str, name: str) -> bytes:
    return os.getxattr(path, name, follow_symlinks=False)
