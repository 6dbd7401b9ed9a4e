"""Directories in which builds work, and what killed builds have left. A lock in each tells that its build lives.

No build waits for another one here, and nothing is removed but what has a name as ctrain gives it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Optional

from ctrain_builder.files import locks, tree
from ctrain_runtime.errors import BuildError

_LIVE = ".live"  # the lock file: locked for as long as the build lives
_PREFIX = "ctrain-build-"


@dataclass(frozen=True)
class WorkDirectories:
    root: Path

    @contextlib.contextmanager
    def create(self) -> Iterator[Path]:
        """A directory for one build, removed at its end."""
        live = None
        while live is None:  # until no sweep() has come between
            directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self.root / "tmp"))
            live = _lock(directory)
        with contextlib.ExitStack() as stack:
            stack.callback(_remove, directory)  # once its lock is closed: on NFS, an open file stays as .nfs0123
            stack.enter_context(live)
            try:
                yield directory
            finally:
                _remove(directory)

    def sweep(self) -> list[Path]:
        """Remove the work directories and locks of builds that were killed: those that nobody holds any more.

        Returns the directories that remain: they hold files of subordinate user IDs, or what a build started still
        writes to them for a moment.
        """
        for path in (path for path in (self.root / "locks").iterdir() if path.is_file() and not path.is_symlink()):
            file = locks.try_lock(path, fcntl.LOCK_EX)
            if file is not None:
                with file:
                    path.unlink()
        return [path for path in (self.root / "tmp").iterdir() if _is_own_work(path) and not _sweep(path)]


def _is_own_work(path: Path) -> bool:
    """Whether it is a work directory of this user's; nobody else can remove one."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False  # its build has just ended
    return path.name.startswith(_PREFIX) and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _sweep(directory: Path) -> bool:
    """Remove a work directory unless its build lives; False if something is left of it although that is dead."""
    live = _lock(directory)
    if live is None:
        return True
    with live:
        _remove(directory)
    with contextlib.suppress(OSError):
        directory.rmdir()  # what the lock has left, which was open: see create
    live = _lock(directory)
    if live is None:
        return True
    live.close()
    return False


def _lock(directory: Path) -> Optional[BinaryIO]:
    """The lock of a work directory, which may have been removed in part; None if another holds it or it is gone."""
    with contextlib.suppress(FileNotFoundError):
        (directory / _LIVE).touch()
        return locks.try_lock(directory / _LIVE, fcntl.LOCK_EX)
    return None


def _remove(directory: Path) -> None:
    with contextlib.suppress(OSError, BuildError):  # no reason for a build to fail; sweep() has another try
        tree.remove(directory)
