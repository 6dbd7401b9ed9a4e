"""Stores: whether they can be read, and whether only their keepers can change what others run.

Keepers are root, the owner of the store's folder, and its group where that may write.
"""

from __future__ import annotations

import functools
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from ctrain_runtime import lease, users
from ctrain_runtime.doctor.finding import Finding
from ctrain_runtime.errors import StoreError
from ctrain_runtime.store import BASES, CHANNELS, QUARANTINE, RETIRED, open_store

_NAMED = 5  # paths at most that one finding names


def check_store(root: Path) -> Iterator[Finding]:
    """What can be said of the store at `root`."""
    subject = f"store {root}"
    try:
        store = open_store(root)
        scan, found = store.scan(), root.stat()
    except (StoreError, OSError) as error:
        yield Finding(subject, "fail", str(error))
        return
    for damaged in scan.damaged:
        yield Finding(subject, "fail", damaged.message, damaged.hint)
    loose, foreign = _world_writable(root), _unexpected_owner(root, found)
    owner = users.user_name(found.st_uid)
    if loose:
        yield Finding(subject, "fail", f"everybody can write to {_some(loose)}", "Its keepers should chmod o-w these")
    if foreign:
        text = f"others than its keepers own {_some(foreign)}"
        yield Finding(subject, "fail", text, f"Its keepers should look at these, and chown them to {owner}")
    if not (scan.damaged or loose or foreign):
        group = f" and group {users.group_name(found.st_gid)}" if found.st_mode & stat.S_IWGRP else ""
        images = f"{len(scan.images)} images" if len(scan.images) != 1 else "1 image"
        yield Finding(subject, "ok", f"{images}; only {owner}{group} can change it")


def _world_writable(root: Path) -> list[Path]:
    """What everybody can write: of the store, or of the folders that lead to it (where the sticky bit is enough)."""
    above = [path for path in root.resolve().parents if _open(path) and not path.stat().st_mode & stat.S_ISVTX]
    leases = root / lease.LEASES
    own = [path for path in _parts(root) if _open(path) and path != leases]
    return [*above, *own, *([leases] if _open(leases) and not leases.stat().st_mode & stat.S_ISVTX else [])]


def _unexpected_owner(root: Path, found: os.stat_result) -> list[Path]:
    """What belongs to somebody who is no keeper: an owner can always write."""

    @functools.cache
    def keeps(uid: int) -> bool:
        return uid in (0, found.st_uid) or bool(found.st_mode & stat.S_IWGRP and found.st_gid in _groups(uid))

    return [path for path in _parts(root) if not keeps(path.lstat().st_uid)]


def _parts(root: Path) -> list[Path]:
    """The folders of a store, and all that lies in them; not what is in the folder of leases."""
    folders = [root, *(root / name for name in (CHANNELS, BASES, RETIRED, QUARANTINE))]
    return [root, *(path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir()))]


def _open(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:  # gone since the folder was read
        return False
    return bool(mode & stat.S_IWOTH) and not stat.S_ISLNK(mode)


def _groups(uid: int) -> set[int]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return set()
    return {*os.getgrouplist(user.pw_name, user.pw_gid)}


def _some(paths: list[Path]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(map(str, paths[:_NAMED])) + more
