"""The copies of code that users' own machines have sent: below .code/ in the parent directory of runs, as long as they
are needed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.file_locks import lock_open_file
from ctrain_runtime.errors import CtrainError, JobError
from ctrain_runtime.remote.upload import CODE

LOCK_SUFFIX = ".lock"
KEPT_SECONDS = 3600.0  # since it was asked for: a submission takes less, also over a slow line


@contextlib.contextmanager
def in_use(directory: Path) -> Iterator[None]:
    """While entered, the copy in which a run starts is not removed. Raises JobError if it was."""
    copy = next((path for path in (directory, *directory.parents) if path.parent.name == CODE), None)
    if copy is None:
        yield
        return
    with _locked(copy, fcntl.LOCK_SH) as lock:
        if not touch(copy):
            lock.unlink(missing_ok=True)
            raise JobError(f"{copy} was removed meanwhile", "Retry the same line")
        yield


def touch(copy: Path) -> bool:
    """Keep a copy for a while; False if it does not exist."""
    try:
        os.utime(copy)
    except FileNotFoundError:
        return False
    return True


def unneeded(parent: Path, but_for: Collection[Path] = ()) -> list[Path]:
    """The caller's copies that no run in `parent` is from, those of `but_for` apart, and that nobody has asked for in
    a while; also what an interruption has left. None as long as a run there cannot be read."""
    try:
        old = {path.name: path for path in (parent / CODE).iterdir() if _is_old(path)}
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [old[name] for name in sorted(old.keys() - _named(old, parent, but_for))]


def remove(copy: Path) -> bool:
    """Remove a copy, unless it has come into use. Raises CtrainError."""
    try:
        with _locked(copy, fcntl.LOCK_EX | fcntl.LOCK_NB) as lock:
            if not _is_old(copy) or _named([copy.name], copy.parent.parent):
                return False
            gone = copy.with_name(f".{copy.name.lstrip('.')}.gone")
            copy.rename(gone)  # nobody sees a part of it
            shutil.rmtree(gone)
            lock.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    except OSError as error:
        raise CtrainError(f"cannot remove {error.filename or copy}: {error.strerror}") from error
    return True


@contextlib.contextmanager
def _locked(copy: Path, kind: int) -> Iterator[Path]:
    lock = copy.with_name(f"{copy.name}{LOCK_SUFFIX}")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            lock_open_file(descriptor, lock, kind)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks: that it was asked for keeps it
            pass
        yield lock
    finally:
        os.close(descriptor)


def _is_old(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    is_copy = path.suffix != LOCK_SUFFIX and status.st_uid == os.geteuid()
    return is_copy and time.time() - status.st_mtime > KEPT_SECONDS


def _named(names: Collection[str], parent: Path, but_for: Collection[Path] = ()) -> set[str]:
    """Those of some copies that a run is from, or may be."""
    used = set[str]()
    for run in parent.iterdir() if names else ():
        if run in but_for:
            continue
        try:
            text = (run / run_files.PLAN).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # of another user
            return set(names)
        used |= {name for name in names if f"/{CODE}/{name}" in text}
    return used
