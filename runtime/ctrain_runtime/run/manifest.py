"""manifest.json: which code and data a run had when it was submitted. Making it never takes long."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.base.version import ctrain_version
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run import directory

MAX_FILES, MAX_SECONDS = 10_000, 1.0  # of a data set
DIGEST_SECONDS = 0.5  # of them; files that come later have none
MAX_DIGEST_BYTES = 1 << 16  # of a file of data
MAX_CODE_BYTES = 1 << 20  # of a file


@dataclass(frozen=True)
class DataFile:
    """A file of a data set: `modified` is its time in nanoseconds, `digest` "" unless it is small."""

    size: int
    modified: int
    digest: str = ""


@dataclass(frozen=True)
class Manifest:
    """The version of ctrain, the digests of the copied code by file, and the data. `unknown`: why it is not listed."""

    ctrain: str
    code: dict[str, str] = field(default_factory=dict)
    data: dict[str, DataFile] = field(default_factory=dict)
    unknown: str = ""


def make(plan: LaunchPlan) -> Manifest:
    """The manifest of a run whose code is copied. What cannot be listed is said to be unknown."""
    code = code_digests(Path(plan.run_directory) / run_files.CODE)
    try:
        data, unknown = data_files(Path(plan.mounts.data)) if plan.mounts.data else {}, ""
    except (OSError, TooLarge) as error:
        data, unknown = {}, str(error)
    return Manifest(ctrain_version(), code, data, unknown)


def load(run: Path) -> Manifest:
    """The manifest in a run's directory. Raises DataError without one, ConfigError for one that is damaged."""
    path = run / run_files.MANIFEST
    return directory.load_written(Manifest, directory.read_json(path), path)


def code_digests(copy: Path) -> dict[str, str]:
    """The digests of the files in a run's copy of its code, as far as they can be read; {} if it has none. Neither byte
    code nor what is too large for code, as a program may write there."""
    digests = {}
    for path in sorted(copy.rglob("*")):
        with suppress(OSError):
            is_code = path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
            if is_code and path.stat().st_size <= MAX_CODE_BYTES:
                digests[str(path.relative_to(copy))] = file_digest(path)
    return digests


class TooLarge(Exception):
    """A data set that is too large to be listed."""


def data_files(data: Path) -> dict[str, DataFile]:
    """The files of a data set by their names in it. Raises OSError, or TooLarge."""
    begun, files = time.monotonic(), dict[str, DataFile]()
    for path, status in _walk(data):
        seconds = time.monotonic() - begun
        if len(files) == MAX_FILES or seconds > MAX_SECONDS:
            raise TooLarge(f"more than {MAX_FILES:,} files, or than can be listed in {MAX_SECONDS:g} s")
        is_small = status.st_size <= MAX_DIGEST_BYTES and seconds < DIGEST_SECONDS
        name = path.name if path == data else str(path.relative_to(data))
        files[name] = DataFile(status.st_size, status.st_mtime_ns, file_digest(path) if is_small else "")
    return files


def _walk(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    if not path.is_dir():
        yield path, path.stat()
        return
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path))
            elif entry.is_file():
                yield Path(entry.path), entry.stat()
