"""Locks in files that name their owner: for one builder's cache, and for a store that several admins write to."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Optional

from ctrain_runtime.errors import StoreError
from ctrain_runtime.text import user_name

POLL = 0.1  # seconds between two tries to get a lock
_PATIENCE = 1.0  # seconds of waiting that nobody needs to be told of
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # as Lustre says when it is mounted without `flock`
_OWNER = re.compile(r"pid (\d+) \(\S+ on (\S+),")


@contextlib.contextmanager
def hold(
    path: Path,
    waiting: Callable[[str], None] = lambda _: None,
    tick: Callable[[], None] = lambda: None,
    mode: int = 0o644,
) -> Iterator[None]:
    """Hold the lock `path`, a file that exists as long. `mode` is what the file gets, whatever the umask.

    `waiting` is told once who has it; `tick` is called several times a second while he does, and may raise.
    Raises StoreError where a file system has no locks and a dead process has left its file.
    """
    patience = time.monotonic() + _PATIENCE
    told = False
    while (file := _take(path, mode, patience)) is None:
        tick()
        if not told and time.monotonic() > patience:
            told = True
            waiting(owner(path))
        time.sleep(POLL)
    with file:
        file.truncate(0)
        file.write(_me())
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def owner(path: Path) -> str:
    """Who holds a lock, as in: pid 812 (kim on login01, since 04:12 UTC); "somebody" in the moment when it changes."""
    try:
        return path.read_text(encoding="utf-8", errors="replace") or "somebody"
    except OSError:
        return "somebody"


def locked(path: Path, mode: str, kind: int) -> Optional[IO[Any]]:
    """The file, opened and locked; None when another has the lock, or has just replaced or removed the file."""
    try:
        file = path.open(mode)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        file.close()
        raise
    file.close()
    return None


def _take(path: Path, mode: int, patience: float) -> Optional[IO[Any]]:
    created = _create(path, mode)
    try:
        return locked(path, "r+", fcntl.LOCK_EX)
    except PermissionError:
        if time.monotonic() > patience:
            raise
        return None  # it has just been made, and does not have its mode yet
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        # Without locks, who creates the file has it. Whether its owner lives can be told on his machine only.
        if created:
            return path.open("r+")
        _require_owner(path)
        return None


def _create(path: Path, mode: int) -> bool:
    """Make the file if it isn't there; True if it was made. Leaves the umask alone, which all threads share."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return False
    try:
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    return True


def _require_owner(path: Path) -> None:
    who = owner(path)
    found = _OWNER.match(who)
    if found and found[2] == socket.gethostname() and not Path(f"/proc/{found[1]}").exists():
        raise StoreError(f"{path} was left by {who}, who is gone", "Look at what he did, then remove it")


def _me() -> str:
    user = user_name(os.geteuid())
    return f"pid {os.getpid()} ({user} on {socket.gethostname()}, since {time.strftime('%H:%M', time.gmtime())} UTC)"
