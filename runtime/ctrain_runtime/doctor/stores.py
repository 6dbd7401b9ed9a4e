"""Checks stores: whether they are readable, and whether only their maintainers can change what others run.

Maintainers are root, the owner of the store's directory, and its group if that has write permission.
"""

from __future__ import annotations

import functools
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from ctrain_runtime.base.text import group_name, pluralize, user_name
from ctrain_runtime.doctor import Finding
from ctrain_runtime.doctor.contents import check_contents
from ctrain_runtime.errors import StoreError
from ctrain_runtime.store import lease
from ctrain_runtime.store.signatures import SIGNATURES
from ctrain_runtime.store.store import CHANNELS, QUARANTINE, RETIRED, open_store

_MAX_PATHS = 5  # named in one finding


def check_store(root: Path) -> Iterator[Finding]:
    """Check the store at `root`: one finding per problem, or a single one without any."""
    subject = f"store {root}"
    try:
        store = open_store(root)
        contents, status = store.scan(), root.stat()
        problems = list(check_contents(store, contents))
        yield from problems
        writable, unexpected = _world_writable(root), _unexpected_owner(root, status)
    except (StoreError, OSError) as error:
        yield Finding(subject, "fail", str(error))
        return
    owner = user_name(status.st_uid)
    if writable:
        yield Finding(subject, "fail", f"world-writable: {_list(writable)}", "Ask the store's owner to run chmod o-w")
    if unexpected:
        hint = f"Ask the store's owner to check these files and run chown {owner}"
        yield Finding(subject, "fail", f"not owned by a maintainer: {_list(unexpected)}", hint)
    if not (problems or writable or unexpected):
        group = f" and group {group_name(status.st_gid)}" if status.st_mode & stat.S_IWGRP else ""
        text = f"{pluralize(len(contents.images), 'image')}; writable by {owner}{group} only"
        first = "ctrain build pytorch-cpu-slim && ctrain publish pytorch-cpu-slim"
        hint = "" if contents.images else f"Publish a first one, as in: {first} --store {root}"
        yield Finding(subject, "warn" if hint else "ok", text, hint)


def _world_writable(root: Path) -> list[Path]:
    """World-writable files and directories of the store, and parent directories (unless sticky)."""
    parents = [path for path in root.resolve().parents if _others_write(path) and not _sticky(path)]
    leases = root / lease.LEASES
    files = [path for path in _files(root) if _others_write(path) and path != leases]
    return [*parents, *files, *([leases] if _others_write(leases) and not _sticky(leases) else [])]


def _unexpected_owner(root: Path, status: os.stat_result) -> list[Path]:
    """Files of owners who are not maintainers: an owner can always write."""

    @functools.cache
    def is_maintainer(uid: int) -> bool:
        return uid in (0, status.st_uid) or bool(status.st_mode & stat.S_IWGRP and status.st_gid in _groups(uid))

    return [path for path in _files(root) if not is_maintainer(path.lstat().st_uid)]


def _files(root: Path) -> list[Path]:
    """The directories of a store and their contents, except the individual leases."""
    directories = [root, *(root / name for name in (CHANNELS, RETIRED, QUARANTINE, SIGNATURES))]
    return [root, *(path for directory in directories if directory.is_dir() for path in sorted(directory.iterdir()))]


def _sticky(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_ISVTX)


def _others_write(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:  # removed while the directory was read
        return False
    return bool(mode & stat.S_IWOTH) and not stat.S_ISLNK(mode)


def _groups(uid: int) -> set[int]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return set()
    return {*os.getgrouplist(user.pw_name, user.pw_gid)}


def _list(paths: list[Path]) -> str:
    more = f" and {len(paths) - _MAX_PATHS} more" if len(paths) > _MAX_PATHS else ""
    return ", ".join(map(str, paths[:_MAX_PATHS])) + more
