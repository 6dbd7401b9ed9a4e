"""Removes from a cache what no build uses."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cached_layers import BASE_SUFFIX
from ctrain_builder.files import locks

_RECORDS = ("inputs/*.json", "facts/*.json", "durations/*.json", "logs/*.log")


def evict(cache: Cache, cap: int) -> int:
    """Remove layers, images and what was compiled, the least recently used first, until the rest has at most
    `cap` bytes.

    What any build uses stays. Returns the bytes that are left.
    """
    files = _by_use(cache)
    if sum(size for _, size, _ in files) <= cap:
        return sum(size for _, size, _ in files)
    with cache.locks.hold("evict"):  # two at once would remove more than they must
        files = _by_use(cache)
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total > cap and remove(cache, path):
                total -= size
    return total


def _by_use(cache: Cache) -> list[tuple[int, int, Path]]:
    """When each large file was used last, its size, and its path; the least recently used first."""
    files: list[tuple[int, int, Path]] = []
    for path in large_files(cache):
        with contextlib.suppress(FileNotFoundError):  # another build has just taken it
            status = path.stat()
            files.append((status.st_mtime_ns, status.st_size, path))
    return sorted(files)


def large_files(cache: Cache) -> list[Path]:
    """All layers and images, and what layers have compiled."""
    patterns = (f"layers/*{BASE_SUFFIX}", "layers/*.sqsh", "images/*.sif", "compiled/*.tar")
    matches = (path for pattern in patterns for path in cache.root.glob(pattern))
    return [path for path in matches if path.is_file() and not path.is_symlink()]


def forget(cache: Cache) -> None:
    """Remove all that is remembered of builds, and their logs."""
    for path in (path for pattern in _RECORDS for path in cache.root.glob(pattern)):
        path.unlink(missing_ok=True)


def remove(cache: Cache, path: Path) -> bool:
    """Remove such a file with its description, unless a build uses it."""
    maker = locks.try_hold(cache.root / "locks" / path.stem, cache.locks.mode)
    if maker is None:
        return False  # a build replaces it: what is there in a moment is not what was there
    with maker:
        file = locks.try_lock(path, fcntl.LOCK_EX)
        if file is None:
            return False
        with file:
            path.with_suffix(".json").unlink(missing_ok=True)  # first: an image without its manifest is none
            path.unlink()
    return True
