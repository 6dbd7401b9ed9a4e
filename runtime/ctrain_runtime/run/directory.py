"""A run directory: plan.json, record.json, metrics.jsonl, logs/, checkpoint/ and the scripts. Format: docs/runs.md."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from ctrain_runtime.errors import CtrainError, DataError, DiskFullError, UsageError
from ctrain_runtime.job import NAME
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.schedulers import script

PLAN, RECORD, METRICS, CHECKPOINT = "plan.json", "record.json", "metrics.jsonl", "checkpoint"


def choose(parent: Path, job: str, name: str = "") -> Path:
    """The directory of a new run: `name` if given, else the job's name and the time; it does not exist yet."""
    if name and not NAME.fullmatch(name):
        raise UsageError(f"--name {name!r} is not a name", "Use letters, digits, '.', '_' and '-'")
    if name and (parent / name).exists():
        raise UsageError(f"there is a run {parent / name} already", "Choose another --name")
    base = name or f"{job}-{time.strftime('%m%d-%H%M%S')}"
    path, number = parent / base, 1
    while path.exists():
        number += 1
        path = parent / f"{base}-{number}"
    return path


def check(plan: LaunchPlan) -> None:
    """Check that all that is to be mounted exists, but the run directory itself. Raises DataError."""
    for mount in plan.mounts:
        if not Path(mount.source).exists() and mount.source != plan.run_directory:
            raise DataError(
                f"{mount.source} does not exist, so it can't be mounted at {mount.target}", "Check the path"
            )


def create(launch: Launch) -> Path:
    """Make the directory of `launch` and write its plan and scripts into it. Raises DiskFullError, leaving nothing."""
    path = Path(launch.plan.run_directory)
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise _not_made(path, error) from error
    try:
        _fill(path, launch)
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise _not_made(path, error) from error
    return path


def _fill(path: Path, launch: Launch) -> None:
    for folder in (script.LOGS, script.RANKS, CHECKPOINT):
        (path / folder).mkdir()
    write_json(path / PLAN, as_data(launch))
    for name, text in launch.scripts.items():
        (path / name).write_text(text, encoding="utf-8")


def _not_made(path: Path, error: OSError) -> CtrainError:
    kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else CtrainError
    return kind(f"can't make the run directory {path}: {error.strerror}", "Choose another place with --runs DIR")


def as_data(launch: Launch) -> dict[str, Any]:
    """The launch as plain data: what --dry-run --json prints and plan.json holds."""
    return dataclasses.asdict(launch)


def write_json(path: Path, data: Any) -> None:
    """Write whole or not at all: readers never see half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def rank_log(plan: LaunchPlan, rank: int) -> Path:
    return Path(plan.run_directory) / script.LOGS / f"rank{rank}.log"


def checkpoint_of(run: Path) -> Path:
    """The checkpoint folder of an earlier run, for --resume. Raises DataError when it holds none."""
    folder = run.resolve() / CHECKPOINT
    if not folder.is_dir() or not any(folder.iterdir()):
        raise DataError(f"run {run} has no checkpoint to go on from", f"It would be in {folder}")
    return folder
