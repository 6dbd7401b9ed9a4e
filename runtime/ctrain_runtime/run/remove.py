"""Removes run directories: those of the caller's runs that have ended, and nothing else.

No link is followed: the directory itself must not be one, and those inside are removed, not what they point to. The
plan and the record go last, so that what an interruption leaves is still a run, and can be removed again.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import CtrainError, DataError
from ctrain_runtime.run import directory
from ctrain_runtime.run.pick_up import pick_up, refresh
from ctrain_runtime.run.record import Record

BLOCK_BYTES = 512  # of st_blocks (stat(2))
LAST = (run_files.RECORD, run_files.PLAN)


@dataclass(frozen=True)
class Removable:
    """A run that can be removed: its directory, its record, the bytes on disk, and whether it has a checkpoint."""

    path: Path
    record: Record
    size: int
    has_checkpoint: bool


def check(path: Path, all_runs: Iterable[Path]) -> Removable:
    """The run in `path`, if it can be removed. Raises DataError if it has not ended for certain, if one of `all_runs`
    that may go on resumes its checkpoint, or if `path` is a link."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise DataError(f"{path} is a link", "Name the run's own directory")
    run = pick_up(path)  # refuses those of others
    status, conclusion = refresh(run)
    known = conclusion.record if conclusion else run.record
    if not known.exit:
        state = "it is unknown whether it has ended" if status.phase == "unknown" or status.note else "it has not ended"
        raise DataError(f"run {path} cannot be removed: {state}", f"Cancel it first: ctrain cancel {path}")
    if known.doubtful:
        raise DataError(f"run {path} cannot be removed: its files may still appear here", "Retry in a minute")
    checkpoint = path / run_files.CHECKPOINT
    for other in all_runs:
        resumed = _open_resume(other)
        if resumed and os.path.realpath(resumed) == os.path.realpath(checkpoint):
            raise DataError(
                f"run {path} cannot be removed: run {other.name} resumes its checkpoint", "Wait for its end"
            )
    return Removable(path, known, size_on_disk(path), checkpoint.is_dir() and any(checkpoint.iterdir()))


def remove(run: Removable) -> None:
    """Remove the directory of a run. Raises CtrainError; what is left then is still a run."""
    try:
        with os.scandir(run.path) as listing:
            entries = list(listing)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name not in LAST:
                Path(entry.path).unlink()
        for name in LAST:
            (run.path / name).unlink(missing_ok=True)
        run.path.rmdir()
    except OSError as error:
        raise CtrainError(f"cannot remove {error.filename or run.path}: {error.strerror}") from error


def _open_resume(path: Path) -> str:
    """The checkpoint that a run resumes which may still go on; "" without. Records of all schemas tell it."""
    try:
        known = directory.read_json(path / run_files.RECORD)
    except CtrainError:  # damaged: it is not known to go on
        return ""
    return "" if known.get("exit") else str(known.get("resume") or "")


def size_on_disk(path: Path) -> int:
    """The bytes on disk of all files below a directory."""
    paths = (os.path.join(above, name) for above, _, names in os.walk(path) for name in names)  # noqa: PTH118  # of many files
    return sum(os.lstat(name).st_blocks * BLOCK_BYTES for name in paths)
