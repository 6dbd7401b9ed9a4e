"""Who uses what of a cache: locks on what is made, and on the files that builds use."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Optional

from ctrain_builder.files import locks


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class CacheLocks:
    root: Path

    @property
    def is_shared(self) -> bool:
        """Whether the cache belongs to a group."""
        return bool(self.root.stat().st_mode & stat.S_IWGRP)

    @property
    def mode(self) -> int:
        return 0o664 if self.is_shared else 0o644

    def hold(
        self, name: str, waiting: Callable[[str], None] = lambda _: None, tick: Callable[[], None] = lambda: None
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the lock `name`, so that two builders don't make the same thing: see locks.hold."""
        return locks.hold(self.root / "locks" / name, waiting, tick, self.mode)

    @contextlib.contextmanager
    def use(self, path: Path) -> Iterator[bool]:
        """Keep a layer or image from being evicted or replaced, and note that it is in use now. False: it does not
        exist."""
        with self._hold_file(path, fcntl.LOCK_SH) as exists:
            if exists:
                os.utime(path)
            yield exists

    def replacing(
        self, path: Path, waiting: Callable[[], None], tick: Callable[[], None]
    ) -> contextlib.AbstractContextManager[bool]:
        """Keep builds from a file that is to be replaced, if it exists, once none uses it."""
        return self._hold_file(path, fcntl.LOCK_EX, waiting, tick)

    @contextlib.contextmanager
    def _hold_file(
        self, path: Path, kind: int, waiting: Callable[[], None] = _nothing, tick: Callable[[], None] = _nothing
    ) -> Iterator[bool]:
        """Lock a file of the cache; `waiting` is called once while others have it, `tick` several times a second."""
        while path.exists():
            file = locks.try_lock(path, kind)
            if file is not None:
                with file:
                    yield True
                return
            waiting()
            waiting = _nothing
            tick()
            time.sleep(locks.POLL_SECONDS)
        yield False

    def move_out(self, path: Path, target: Path) -> Optional[Path]:
        """Move an image out of the cache, and forget its manifest. None: it is missing, or in use (then it stays)."""
        path.with_suffix(".json").unlink(missing_ok=True)  # first: an image without its manifest is none
        file = locks.try_lock(path, fcntl.LOCK_EX)
        if file is None:
            return None
        with file:
            if _is_open_elsewhere(file):
                return None
            path.replace(target)
        return target


def _is_open_elsewhere(file: IO[Any]) -> bool:
    """Whether another program, as a container that runs from it, has the file open; True where that can't be told."""
    try:  # a lease is given only when nobody else has it open
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    return False
