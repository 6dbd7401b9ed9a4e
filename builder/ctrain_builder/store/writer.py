"""A store that is being changed: one writer at a time, with the modes and the group of the store's root."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from ctrain_builder.files import atomic, locks
from ctrain_builder.store import hooks, log
from ctrain_runtime.errors import DiskFullError, GateNotPassed, StoreError
from ctrain_runtime.store import lease, outputs
from ctrain_runtime.store.store import Store, StoreContents, open_store

LOCK = ".ctrain-store.lock"
_LIMIT = 600  # seconds to wait for the lock, which is held for seconds: copies, downloads and signatures do without


@dataclass(frozen=True)
class Permissions:
    """Modes and group for what is written: those of the store's root, whatever the umask. Never world-writable."""

    root: os.stat_result

    @property
    def directory(self) -> int:
        return stat.S_IMODE(self.root.st_mode) & ~stat.S_IWOTH

    @property
    def open_directory(self) -> int:
        """Of a directory where all who can read the store may leave something, and remove but their own."""
        readers = sum(write for write in (stat.S_IWUSR, stat.S_IWGRP, stat.S_IWOTH) if self.root.st_mode & write << 1)
        return self.directory | readers | stat.S_ISVTX

    @property
    def file(self) -> int:
        return stat.S_IMODE(self.root.st_mode) & 0o444

    @property
    def shared_file(self) -> int:
        return self.directory & 0o666

    @property
    def group(self) -> int:
        return self.root.st_gid


@dataclass(frozen=True)
class LockedStore:
    """Changes `store`, whose lock is held. Every change is in the log before it is made."""

    store: Store
    access: Permissions
    changes: list[log.Entry] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.store.root

    def log(self, action: str, name: str, version: str, **more: str) -> None:
        self.changes.append(log.entry(action, name, version, **more))
        log.append(self.root, self.changes[-1], self.access.shared_file, self.access.group)

    def write(self, path: Path, text: str) -> None:
        """Replace a file, whole or not at all."""
        atomic.write_text(path, text, self.access.file, self.access.group)

    def create(self, path: Path, text: str) -> None:
        """Write a new file. Raises FileExistsError."""
        atomic.create_text(path, text, self.access.file, self.access.group)

    def record_output(self, path: Path, kind: str, contents: StoreContents) -> None:
        """Note what was made from these contents, so that it can be kept up to date."""
        others = [output for output in outputs.read_outputs(self.root) if output.path != path.absolute()]
        made = outputs.Output(path.absolute(), kind, outputs.fingerprint(contents), str(self.root.absolute()))
        self.write(self.root / outputs.FILE, outputs.as_json([*others, made]))

    def directory(self, name: str, mode: Optional[int] = None) -> Path:
        """A directory of the store, made if it isn't there; with the mode of its other directories unless told."""
        path = self.root / name
        if not path.exists():
            # Without setgid it would have the publisher's own group
            atomic.create_directory(path, self.access.directory if mode is None else mode, self.access.group)
        return path


@contextlib.contextmanager
def lock_store(root: Path, say: Callable[[str], None] = lambda _: None) -> Iterator[LockedStore]:
    """Hold the lock of the store at `root`. `say` is told what a person should know meanwhile. Raises StoreError."""
    store = open_store(root)
    access = Permissions(root.stat())

    def waiting(owner: str) -> None:
        say(f"waiting for {owner}, which is writing to the store")

    writer = LockedStore(store, access)
    try:
        with (
            translate_os_errors(root),
            locks.hold(root / LOCK, waiting, mode=access.shared_file, group=access.group, machines=True, limit=_LIMIT),
        ):
            writer.directory(lease.LEASES, access.open_directory)
            yield writer
    except GateNotPassed:  # of a channel: what was changed before stands
        _run_hooks(writer, say)
        raise
    _run_hooks(writer, say)


def _run_hooks(writer: LockedStore, say: Callable[[str], None]) -> None:
    """What fails is in the log, too: nobody may read what a job at night says."""
    for change, problem in hooks.run(writer.root, writer.changes, say):
        with translate_os_errors(writer.root):
            writer.log(log.HOOK_FAILED, change.name, change.version, why=problem)


@contextlib.contextmanager
def translate_os_errors(root: Path) -> Iterator[None]:
    """What the system says when a store can't be written, as StoreError."""
    try:
        yield
    except PermissionError as error:
        raise StoreError(f"store {root} can't be written: {error.filename or error}", "Ask its owner") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"the disk of store {root} became full", "Free disk space: ctrain store gc") from error
        if error.errno == errno.EROFS:
            raise StoreError(f"store {root} is mounted read-only here", "Use a machine where it is writable") from error
        if error.errno in (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT):
            what = f"the file system of store {root} fails: {error.strerror}"
            raise StoreError(what, "Unfinished changes have no effect; retry when it is back") from error
        raise
