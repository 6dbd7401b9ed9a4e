"""Asks what the layers below a new one hold. Asked seldom: it takes a container, and may take a walk over all files."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from ctrain_builder.files.tree import Tree
from ctrain_builder.layers.container import Container, LowerLayers

# Not through links: what is behind one isn't in the directory of that name.
_CONTENT = """\
if [ -d "$name" ] && [ "$(readlink -f "$name"; echo .)" = "$name
." ]; then
    find "$name" -mindepth 1 -print0
fi"""
# fuse-overlayfs gives files of two layers one inode number: names of one file have its links, size and content, too.
DIRECTORY = "below"  # in the work directory
_NAMES = """\
if [ -n "$(find "$name" -maxdepth 0 -type f -links +1 2>/dev/null)" ]; then
    find / -xdev -samefile "$name" -links "$(stat -c %h "$name")" -size "$(stat -c %s "$name")c" -exec \\
        sh -c "test \\"\\$(sha256sum <\\"\\$0\\")\\" = \\"\\$(sha256sum <\\"\\$1\\")\\"" "$name" {} \\; -print0
    printf "\\0"
fi"""
_EXISTING = """\
if [ -e "$name" ]; then printf "%s\\0" "$name"; fi"""
_Paths = list[PurePosixPath]


def list_descendants(
    container: Container, below: LowerLayers, directories: Collection[PurePosixPath], log: Path
) -> _Paths:
    """Everything in those of `directories` that are directories there, too."""
    groups = _query(container, below, _CONTENT, directories, log)
    return [path for group in groups for path in group]


def hard_link_groups(
    container: Container, below: LowerLayers, files: Collection[PurePosixPath], log: Path
) -> list[_Paths]:
    """All names (hard links) of those of `files` that have more than one."""
    return _query(container, below, _NAMES, files, log)


def existing(container: Container, below: LowerLayers, paths: Collection[PurePosixPath], log: Path) -> _Paths:
    """Those of `paths` that exist."""
    groups = _query(container, below, _EXISTING, paths, log)
    return [path for group in groups for path in group]


def answers(container: Container) -> Tree:
    """The directory in which a question and its answer lie. A program of the image writes there."""
    directory = container.work / DIRECTORY
    directory.mkdir(exist_ok=True)
    return Tree(directory)


def _query(
    container: Container, below: LowerLayers, script: str, paths: Collection[PurePosixPath], log: Path
) -> list[_Paths]:
    if not paths:
        return []
    answers(container).write("paths", b"".join(b"/" + os.fsencode(path) + b"\0" for path in sorted(paths)))
    binds = [f"{container.work / DIRECTORY}:/mnt"]
    argv = container.argv("exec", below.base, overlays=below.overlays, binds=binds, as_root=True)
    each = f"xargs -0 sh -ec 'for name; do {script}\ndone' sh </mnt/paths >/mnt/answer"
    container.require([*argv, "/bin/sh", "-ec", each], log, "cannot list the layers below")
    with answers(container).open("answer") as file:
        groups = os.fsdecode(file.read()).split("\0\0")
    return [[PurePosixPath(path[1:]) for path in group.split("\0") if path] for group in groups if group]
