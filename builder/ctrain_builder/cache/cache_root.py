"""Where the builder's cache is, that it is one, whose it is (one user's or a group's), and whether its file system can
serve. A marker file tells a cache from every other directory: what is none is never filled, swept or cleared.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from ctrain_builder.cache.build_cache import DIRECTORIES, Cache
from ctrain_builder.files import atomic, locks
from ctrain_runtime.base.file_systems import mount_of
from ctrain_runtime.base.text import user_name
from ctrain_runtime.errors import BuildError

CACHE_MARKER = "ctrain-cache.json"
LAYOUT_VERSION = 1
_PRIVATE_ROOT = "/var/tmp/ctrain-{}"  # noqa: S108  # checked to be this user's
# File systems that the kernel and fuse-overlayfs refuse as the upper directory of an overlay, or that break it.
_NO_OVERLAYS = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "exfat", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4", "ntfs3", "smb3"),
    "vfat",
)
_EMPTY = ("lost+found",)  # what the root directory of a file system has


def default_root() -> Path:
    """$CTRAIN_CACHE, else /var/tmp/ctrain-UID."""
    return Path(os.environ.get("CTRAIN_CACHE") or _PRIVATE_ROOT.format(os.geteuid()))


def open_cache(root: Optional[Path] = None) -> Cache:
    """The cache at `root`, or at the default place; made if it isn't there.

    Raises BuildError when it is neither this user's own nor a group's of theirs, and where builds cannot exclude each
    other.
    """
    root = (root or default_root()).absolute()  # the engine runs in other directories
    with _explained(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(_require_own(root).st_mode)
        if _require_cache(root):
            _mark(root, mode)
        for name in DIRECTORIES:
            with contextlib.suppress(FileExistsError):
                (root / name).mkdir()
                (root / name).chmod(mode | 0o055)
            if not stat.S_ISDIR((root / name).lstat().st_mode):
                raise BuildError(f"cache {root}: {name} is not a directory of its own", f"Remove {root / name}")
        _require_locks(root)
    return Cache(root)


def find_cache(root: Optional[Path] = None) -> Cache:
    """The same for somebody who only looks: writes nothing. The cache, or what will be one, may be missing."""
    root = (root or default_root()).absolute()
    with _explained(root):
        if os.path.lexists(root):
            _require_own(root)
            _require_cache(root)
    return Cache(root)


@contextlib.contextmanager
def _explained(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "Choose another directory with --cache DIR or CTRAIN_CACHE"
        raise BuildError(f"cache {root} can't be used: {error.strerror}", hint) from error


def _require_own(root: Path) -> os.stat_result:
    """Raise BuildError unless the directory is private, or a group's."""
    # /var/tmp belongs to everybody: somebody else may have put a directory or a link of that name there.
    status = root.lstat()
    if not (_is_private(status) or _is_shared(root, status)):
        hint = "Pass --cache DIR; to share one with a group: chgrp GROUP DIR, chmod 2770 DIR"
        raise BuildError(f"unsafe cache {root}: {_why_unsafe(status)}", hint)
    return status


def _why_unsafe(status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "it is a symlink"
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a directory"
    if status.st_uid == os.geteuid() or status.st_mode & stat.S_IWOTH:
        return "others can write to it"
    return f"it belongs to {user_name(status.st_uid)}, and is not shared with a group of yours"


def _require_cache(root: Path) -> bool:
    """Whether the directory is empty, and so has no marker yet. Raises BuildError if it is neither that nor a cache."""
    entries = _entries(root)
    marker = root / CACHE_MARKER
    if not os.path.lexists(marker):  # after listing: another process may make the cache at this moment
        if entries:
            problem = f"{root} is not a cache of ctrain: it has no {CACHE_MARKER} and is not empty ({entries[0]})"
            raise BuildError(problem, "Pass --cache with a new or empty directory")
        return True
    with contextlib.suppress(ValueError, AttributeError):  # not written yet: that it is there counts
        layout = json.loads(marker.read_text(encoding="utf-8")).get("layout")
        if layout != LAYOUT_VERSION:
            raise BuildError(
                f"cache {root} has layout {layout}, not {LAYOUT_VERSION}", "Upgrade ctrain, or pass --cache"
            )
    return False


def _entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name not in _EMPTY)


def _mark(root: Path, mode: int) -> None:
    with contextlib.suppress(FileExistsError):  # by another process at this moment
        atomic.create_text(root / CACHE_MARKER, json.dumps({"layout": LAYOUT_VERSION}) + "\n", mode & 0o664)


def _is_private(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _is_shared(root: Path, status: os.stat_result) -> bool:
    """Whether a cache is meant for a group that this user belongs to, whose members trust each other. Never at the
    default place, which nobody has chosen: there anybody could have made it."""
    is_named = root != Path(_PRIVATE_ROOT.format(os.geteuid()))
    mode = status.st_mode
    is_open = bool(mode & stat.S_ISGID and mode & stat.S_IWGRP) and not mode & stat.S_IWOTH
    member = os.geteuid() == 0 or status.st_gid in (os.getegid(), *os.getgroups())
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
