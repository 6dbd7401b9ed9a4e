"""Locks in files that name their holder: for one builder's cache, and for a store that several machines write to.

Usually the kernel locks the file (`flock`, and what else excludes NFS: base/file_locks), and frees it with its process.
Where such locks do not reach every machine (Lustre without `flock` or with `localflock`, NFS with `local_lock`, file
systems not known here), or do not exist, a store's lock is the file itself: a hard link creates it, whole and only
once. It outlives a process that is killed; then the next one names it and says what to do. A file tells which kind it
is, for machines that mount one file system in different ways.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Optional

from ctrain_runtime.base.file_locks import lock_open_file
from ctrain_runtime.base.file_systems import mount_of
from ctrain_runtime.base.text import user_name
from ctrain_runtime.errors import StoreError

POLL_SECONDS = 0.1  # seconds between two tries to get a lock
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # of flock: Lustre without it, NFS without lockd
_PATIENCE = 1.0  # seconds of waiting that nobody needs to be told of
_NO_LINKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK)
_BY_FILE = "\nwithout flock\n"  # ends the text of a lock that is its file
_HOLDER = re.compile(r"pid (\d+) .*\n(.+)")


@contextlib.contextmanager
def hold(
    path: Path,
    waiting: Callable[[str], None] = lambda _: None,
    tick: Callable[[], None] = lambda: None,
    mode: int = 0o644,
    group: int = -1,
    machines: bool = False,
    limit: float = float("inf"),
) -> Iterator[None]:
    """Hold the lock `path`, a file that exists as long. `mode` is what the file gets, whatever the umask; `group` a
    group ID, -1 leaves it to the system.

    `machines`: against processes of other machines, too. `waiting` is told once who has it; `tick` is called several
    times a second meanwhile, and may raise. Raises StoreError after `limit` seconds, and where a dead process has left
    a lock that is its file.
    """
    started = time.monotonic()
    notified = False
    while True:
        waited = time.monotonic() - started
        try:
            release = try_hold(path, mode, group, machines)
        except PermissionError:
            if waited > _PATIENCE:
                raise
            release = None  # the file has just been created, and does not have its mode yet
        if release is not None:
            break
        tick()
        if waited > limit:
            what = f"{path} has been held for {waited / 60:.0f} minutes by {holder_named(path)}"
            raise StoreError(what, "If that process is gone, remove the file; else try again later")
        if not notified and waited > _PATIENCE:
            notified = True
            waiting(holder_named(path))
        time.sleep(POLL_SECONDS)
    with release:
        yield


def try_hold(path: Path, mode: int = 0o644, group: int = -1, machines: bool = False) -> Optional[contextlib.ExitStack]:
    """Hold the lock until the stack is closed; None if another holds it now."""
    if machines and not mount_of(path.parent).has_cluster_locks:
        return _create_whole(path, mode, group)
    try:
        return _flock(path, mode, group, machines)
    except OSError as error:
        if error.errno not in NO_LOCKS or not machines:
            raise
        return _create_whole(path, mode, group)


def holder_named(path: Path) -> str:
    """Who holds a lock, as in: pid 812 (kim on login01, since 04:12 UTC); "somebody" in the moment when it changes."""
    return _text(path).partition("\n")[0] or "somebody"


def holder(path: Path) -> str:
    """Who holds a lock between machines; "" if certainly nobody does, because it is free or its holder is dead."""
    text = _text(path)
    if text.endswith(_BY_FILE) or not mount_of(path.parent).has_cluster_locks:
        return "" if _is_dead(text) or not path.exists() else holder_named(path)
    try:
        file = try_lock(path, fcntl.LOCK_EX)
    except OSError:  # another user's, or without locks: nobody knows
        return holder_named(path)
    if file is None:
        return holder_named(path) if path.exists() else ""
    file.close()
    return ""


def remove_unheld(path: Path, file: Path) -> bool:
    """Remove `file` and its lock `path` between machines, unless somebody holds that; whether it was removed."""
    if holder(path):
        return False
    try:
        release = try_hold(path, machines=True)
    except StoreError:  # a dead process's
        path.unlink(missing_ok=True)
        file.unlink(missing_ok=True)
        return True
    if release is None:
        return False
    with release:
        file.unlink(missing_ok=True)
    return True


def try_lock(path: Path, kind: int) -> Optional[BinaryIO]:
    """The file, opened and locked; None when another has the lock, or has just replaced or removed the file."""
    try:  # of NFS, descriptors that cannot write get no LOCK_EX
        file = path.open("r+b" if kind == fcntl.LOCK_EX else "rb")
    except FileNotFoundError:
        return None
    try:
        lock_open_file(file, path, kind | fcntl.LOCK_NB)
        with path.open("rb") as again:  # opened anew: only then do NFS clients ask the server what a name means
            if os.path.samestat(os.fstat(file.fileno()), os.fstat(again.fileno())):
                return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        file.close()
        raise
    file.close()
    return None


def _flock(path: Path, mode: int, group: int, machines: bool) -> Optional[contextlib.ExitStack]:
    created = _create(path, mode, group)
    try:
        file = try_lock(path, fcntl.LOCK_EX)
    except OSError as error:
        if created and error.errno in NO_LOCKS:
            path.unlink(missing_ok=True)
        raise
    if file is None:
        return None
    with contextlib.ExitStack() as release:
        release.enter_context(file)
        if file.read().decode(errors="replace").endswith(_BY_FILE):
            return None  # a machine without such locks holds it
        release.callback(path.unlink, missing_ok=True)
        file.seek(0)
        file.truncate()
        file.write(_me().encode())
        file.flush()
        if machines:
            os.fsync(file.fileno())  # so that others can read it
        return release.pop_all()


def _create(path: Path, mode: int, group: int) -> bool:
    """Create the file unless it exists; whether it was created. Leaves the umask alone, which all threads share."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return False
    try:
        os.fchown(descriptor, -1, group)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    return True


def _create_whole(path: Path, mode: int, group: int) -> Optional[contextlib.ExitStack]:
    """A lock that is its file: a link to a file that was written before, so that it is never seen without its text."""
    if path.exists():
        if _is_dead(_text(path)):
            what = f"{path} was left by {holder_named(path)}, which has ended"
            raise StoreError(what, "Nothing is half done; remove the file")
        return None
    descriptor, own = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    with contextlib.ExitStack() as release:
        release.callback(os.close, descriptor)  # last: as long as it is open, no other file gets its inode
        with contextlib.ExitStack() as temporary:
            temporary.callback(Path(own).unlink, missing_ok=True)
            os.write(descriptor, (_me() + _BY_FILE).encode())
            os.fchown(descriptor, -1, group)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            _link(own, path)
            mine = os.fstat(descriptor)
        if mine.st_nlink != 2:  # not the error, which NFS may have got from its own second try, tells that it was made
            return None
        release.callback(_unlink_own, path, mine)
        return release.pop_all()


def _link(own: str, path: Path) -> None:
    try:
        os.link(own, path)
    except (FileExistsError, FileNotFoundError):
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        what = f"{path.parent} is on a file system with neither cluster-wide locks nor hard links"
        raise StoreError(what, "Choose a directory on another one") from error


def _unlink_own(path: Path, mine: os.stat_result) -> None:
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(path.stat(), mine):  # else somebody has removed it, and another holds it now
            path.unlink()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _is_dead(text: str) -> bool:
    """Whether the holder that a lock names ran on this machine and has ended."""
    holder = _HOLDER.match(text)
    return bool(holder and holder[2] == _machine() and not Path(f"/proc/{holder[1]}").exists())


def _me() -> str:
    user, since = user_name(os.geteuid()), time.strftime("%H:%M", time.gmtime())
    return f"pid {os.getpid()} ({user} on {socket.gethostname()}, since {since} UTC)\n{_machine()}"


def _machine() -> str:
    """Where a process number means this process: host names are not unique, nor are the numbers in containers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
