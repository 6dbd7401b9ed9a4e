"""Where the builder's cache is, whose it is (one user's or a group's), and whether its file system can serve."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Optional

from ctrain_builder import atomic, locks
from ctrain_builder.build_cache import Cache
from ctrain_builder.mounts import mount_of
from ctrain_runtime.errors import BuildError

_PRIVATE_ROOT = "/var/tmp/ctrain-{}"  # noqa: S108  # checked to be this user's
# File systems that the kernel and fuse-overlayfs refuse as the upper directory of an overlay, or that break it.
_NO_OVERLAYS = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "exfat", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4", "ntfs3", "smb3"),
    "vfat",
)


def default_root() -> Path:
    """$CTRAIN_CACHE, else /var/tmp/ctrain-UID."""
    return Path(os.environ.get("CTRAIN_CACHE") or _PRIVATE_ROOT.format(os.geteuid()))


def open_cache(root: Optional[Path] = None) -> Cache:
    """The cache at `root`, or at the default place; made if it isn't there.

    Raises BuildError when it is neither this user's own nor a group's of theirs, and where builds cannot exclude each
    other.
    """
    root = (root or default_root()).absolute()  # the engine runs in other directories
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # /var/tmp belongs to everybody: somebody else may have put a directory or a link of that name there.
        found = root.lstat()
        if not (_is_private(found) or _is_shared(root, found)):
            hint = "Pass --cache DIR; to share one with a group: chgrp GROUP DIR, chmod 2770 DIR"
            raise BuildError(f"unsafe cache {root}: a symlink, owned by another user, or writable by others", hint)
        for name in ("layers", "images", "inputs", "facts", "durations", "logs", "locks", "tmp", "space"):
            with contextlib.suppress(FileExistsError):
                (root / name).mkdir()
                (root / name).chmod(stat.S_IMODE(found.st_mode) | 0o055)
        _require_locks(root)
    except OSError as error:
        hint = "Choose another directory with --cache DIR or CTRAIN_CACHE"
        raise BuildError(f"cache {root} can't be used: {error.strerror}", hint) from error
    return Cache(root)


def _is_private(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _is_shared(root: Path, found: os.stat_result) -> bool:
    """Whether a cache is meant for a group that this user belongs to, whose members trust each other. Never at the
    default place, which nobody has chosen: there anybody could have made it."""
    is_named = root != Path(_PRIVATE_ROOT.format(os.geteuid()))
    mode = found.st_mode
    is_open = bool(mode & stat.S_ISGID and mode & stat.S_IWGRP) and not mode & stat.S_IWOTH
    member = os.geteuid() == 0 or found.st_gid in (os.getegid(), *os.getgroups())
    return is_named and stat.S_ISDIR(mode) and is_open and member


def _require_locks(root: Path) -> None:
    """Raise BuildError where builds can't exclude each other: no locks, or locks of one machine and another's cache."""
    hint = "Choose another directory with --cache DIR or CTRAIN_CACHE"
    owner, host = root / "host", socket.gethostname()
    if not owner.exists():
        atomic.write_text(owner, host)
    try:
        with locks.try_lock(owner, fcntl.LOCK_SH) or contextlib.nullcontext():
            pass
    except OSError as error:
        if error.errno not in locks.NO_LOCKS:
            raise
        raise BuildError(f"cache {root} is on a file system without locks", hint) from error
    user = owner.read_text(encoding="utf-8")
    if user != host and not mount_of(root).has_cluster_locks:
        raise BuildError(f"cache {root} is that of {user}, and locks of its file system do not reach {host}", hint)


def require_overlays(cache: Cache) -> None:
    """Raise BuildError where the cache's file system cannot hold the directories that layers are built in."""
    kind = mount_of(cache.root).kind
    problem = f"{kind} cannot hold a writable overlay" if kind in _NO_OVERLAYS else ""
    if os.statvfs(cache.root).f_flag & os.ST_NOEXEC:
        problem = "it is mounted with noexec"
    if problem:
        raise BuildError(f"no layer can be built in cache {cache.root}: {problem}", "Pass --cache DIR on a local disk")
