"""Files with several names (hard links) in the layers below: what changes one of them changes all, as on one disk.

An overlay gives the changed name a copy of its own and leaves the others as they were. Here they are made names of the
copy. What an overlay has parted while %post ran stays so: two names that were both changed, or one that was moved.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from ctrain_builder.files.tree import Tree
from ctrain_builder.layers import lowerdir
from ctrain_builder.layers.container import Container, LowerLayers
from ctrain_builder.layers.overlay import Upper, scan

# Not `ln -f`: to fuse-overlayfs the two names still look like one file, and its rename then does nothing.
_LINK = """xargs -0 -n 2 sh -ec 'rm -f -- "$2"; ln -- "$1" "$2"' sh </mnt/links"""


def relink(container: Container, upper: Path, below: LowerLayers, log: Path) -> None:
    """Give the files that were changed in an overlay the other names that they have below. Raises BuildError."""
    changes = scan(Tree(upper))
    pairs = list(links_to_restore(changes, lowerdir.hard_link_groups(container, below, changes.copied, log)))
    if not pairs:
        return
    words = (b"/" + os.fsencode(path) + b"\0" for pair in pairs for path in pair)
    lowerdir.answers(container).write("links", b"".join(words))
    overlays = [*below.overlays, str(container.overlay)]
    binds = [f"{container.work / lowerdir.DIRECTORY}:/mnt"]
    argv = container.argv("exec", below.base, overlays=overlays, binds=binds, as_root=True)
    container.require([*argv, "/bin/sh", "-ec", _LINK], log, "cannot restore hard links")


def links_to_restore(
    upper: Upper, groups: Iterable[Iterable[PurePosixPath]]
) -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
    """(changed file, other name) for the names that files of the upper directory have below and still must have."""
    for group in map(sorted, groups):
        changed = [path for path in group if path in upper.copied]
        for path in group:
            if len(changed) == 1 and not _parted(upper, path):
                yield changed[0], path


def _parted(upper: Upper, path: PurePosixPath) -> bool:
    """Whether a name of the layers below isn't seen any more, or is another file now."""
    above = set(path.parents)
    hidden = upper.deleted & {path, *above} or above & (upper.others | upper.opaque)
    return bool(hidden) or path in upper.names
