"""Which file system a path is on, whether `flock` there reaches every machine that mounts it, and whether it shows at
once what others write."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TABLE = Path("/proc/self/mountinfo")
_OF_ONE_MACHINE = frozenset(("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"))
_OF_CLUSTERS = frozenset(("ceph", "gfs2", "ocfs2"))
# Those that keep the caches of all machines in step, by their locks; NFS, FUSE, CIFS, 9p ... do not.
_COHERENT = _OF_ONE_MACHINE | _OF_CLUSTERS | {"lustre", "gpfs"}
_NODE_LOCAL_NFS = frozenset(("nolock", "local_lock=all", "local_lock=flock"))


@dataclass(frozen=True)
class Mount:
    """A mounted file system: its type, as in ext4 or lustre, and its options."""

    kind: str
    options: frozenset[str]

    @property
    def has_cluster_locks(self) -> bool:
        """Whether a lock by `flock` excludes processes of all machines. False where that is not known."""
        if self.kind == "lustre":
            return "flock" in self.options  # "localflock" is another option
        if self.kind in ("nfs", "nfs4"):
            return not self.options & _NODE_LOCAL_NFS
        return self.kind in _OF_ONE_MACHINE | _OF_CLUSTERS

    @property
    def is_local(self) -> bool:
        """Whether it is one of this machine, which may be the server from which others mount it by NFS."""
        return self.kind in _OF_ONE_MACHINE

    @property
    def has_caches(self) -> bool:
        """Whether sizes of files, and that a name is missing, may be those of a minute ago. True where that is not
        known."""
        return self.kind not in _COHERENT


def mount_of(path: Path) -> Mount:
    """The mount that `path` is on."""
    real = os.path.realpath(path)
    longest, mount = "", Mount("unknown", frozenset())
    for point, rest in _table():
        if len(point) >= len(longest) and f"{real}/".startswith(f"{point}/"):  # of several at one place, the last
            kind, _, options = rest.split(" ", 2)
            longest, mount = point, Mount(kind, frozenset(options.split(",")))
    return mount


def points_below(directory: Path) -> list[str]:
    """Where file systems are mounted below `directory`, those above others first."""
    above = os.path.realpath(directory).rstrip("/") + "/"
    return sorted({point for point, _ in _table() if point.startswith(above)})


def _table() -> Iterator[tuple[str, str]]:
    """The mount points, without a final slash, each with its type, source and options."""
    for line in _TABLE.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        yield re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split(" ")[4]).rstrip("/"), after
