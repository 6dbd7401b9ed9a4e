"""The space that builds may still write in a cache, so that builds side by side do not count on the same bytes."""

from __future__ import annotations

import contextlib
import fcntl
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.files import locks
from ctrain_runtime.base.text import format_size
from ctrain_runtime.errors import DiskFullError

RESERVED = re.compile(r"[0-9a-f]{16}")  # names in space/
_FICLONE = 0x40049409  # ioctl_ficlone(2)


def free(cache: Cache) -> int:
    """Bytes; of a cache that does not exist yet, where it would be."""
    return shutil.disk_usage(next(path for path in (cache.root, *cache.root.parents) if path.exists())).free


@contextlib.contextmanager
def reserve(
    cache: Cache,
    needed: int,
    what: str,
    waiting: Callable[[], None] = lambda: None,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Keep `needed` bytes for a build, so that builds side by side do not count on the same space.

    As long as others have reserved too much, it waits, tells `waiting` once and calls `tick`. Raises DiskFullError
    if the space is not free although no other build runs.
    """
    notified = False
    while True:
        with cache.locks.hold("space"):
            others = _reserved(cache)
            if not others:
                require(cache, needed, what)
            if free(cache) - others >= needed:
                mine = cache.root / "space" / secrets.token_hex(8)
                mine.write_text(str(needed), encoding="utf-8")
                mine.chmod(cache.locks.mode)
                file = locks.try_lock(mine, fcntl.LOCK_EX)
                break
        if not notified:
            notified = True
            waiting()
        tick()
        time.sleep(locks.POLL_SECONDS)
    with file or contextlib.nullcontext():
        try:
            yield
        finally:
            mine.unlink(missing_ok=True)


def _reserved(cache: Cache) -> int:
    """Bytes that running builds have reserved. What killed ones have left is removed."""
    total = 0
    for path in (path for path in (cache.root / "space").iterdir() if RESERVED.fullmatch(path.name)):
        file = locks.try_lock(path, fcntl.LOCK_EX)
        if file is not None:
            with file:
                path.unlink()
            continue
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            total += int(path.read_text(encoding="utf-8"))
    return total


def require(cache: Cache, needed: int, what: str) -> None:
    """Raise DiskFullError unless `needed` bytes are free."""
    if free(cache) < needed:
        raise DiskFullError(
            f"{what} needs about {format_size(needed)} in {cache.root}, {format_size(free(cache))} are free",
            "Free disk space, or pass --cache DIR",
        )


def shares_blocks(cache: Cache, path: Path) -> bool:
    """Whether a copy of a file of the cache, in the cache, takes no space and no time."""
    with cache.work.create() as work, path.open("rb") as source, (work / "copy").open("wb") as copy:
        try:
            fcntl.ioctl(copy, _FICLONE, source.fileno())
        except OSError:
            return False
    return True
