"""Creates run directories, and reads the launch back from one. Format: docs/run-directory.md."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import shlex
import shutil
import stat
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

from ctrain_runtime import payload
from ctrain_runtime.base import config, run_files
from ctrain_runtime.errors import ConfigError, CtrainError, DataError, DiskFullError, UsageError
from ctrain_runtime.job import NAME
from ctrain_runtime.plan.environment import MASK, secret_names
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.plan.mounts import data_problem
from ctrain_runtime.run import code_copy, shared_files

LAST = "last"  # in place of a run's name: the newest
SCHEMA = 3  # of plan.json: one more for each key that an older ctrain must not overlook. 1 had none of its own
GROUPED_SINCE = 3  # the keys of its plan
T = TypeVar("T")


def new_run_path(parent: Path, job: str, name: str = "") -> Path:
    """The directory of a new run: `name` if given, else the job's name and the time; it does not exist yet."""
    if name and not NAME.fullmatch(name):
        raise UsageError(f"invalid --name {name!r}", "Use letters, digits, '.', '_' and '-'")
    if name == LAST:
        raise UsageError(f"--name {LAST}: this word means the newest run", "Choose another --name")
    if name and ((parent / name).exists() or (parent / f"{name}{run_files.SWEEP_SUFFIX}").exists()):
        raise _exists(parent / name)
    base = name or f"{job}-{time.strftime('%m%d-%H%M%S')}"
    path, number = parent / base, 1
    while path.exists():
        number += 1
        path = parent / f"{base}-{number}"
    return path


def check_mount_sources(plan: LaunchPlan, of_nodes: Collection[str] = ()) -> None:
    """Check that the sources of all mounts exist, except the run directory itself and those that only nodes need have.

    Raises DataError.
    """
    own = (plan.run_directory, f"{plan.run_directory}/{run_files.CODE}")
    for mount in plan.mounts.paths:
        if not Path(mount.source).exists() and mount.source not in (*own, *of_nodes):
            raise DataError(f"cannot mount {mount.source} at {mount.target}: not found", "Check the path")
        if mount.source == plan.mounts.data and (problem := data_problem(mount)):
            raise problem


def reserve(plan: LaunchPlan) -> bool:
    """Create the run's directory, empty. False: another submission has taken its name meanwhile. Raises CtrainError."""
    path = Path(plan.run_directory)
    try:
        path.mkdir(parents=True)
        if plan.private:
            path.chmod(path.stat().st_mode & stat.S_ISGID | 0o700)  # a project's group is also its quota
    except OSError as error:
        if isinstance(error, FileExistsError) and path.is_dir():
            return False
        raise _not_created(path, error) from error
    return True


def release(plan: LaunchPlan) -> None:
    """Remove the directory that `reserve` has created, unless it has been filled."""
    with contextlib.suppress(OSError):
        Path(plan.run_directory).rmdir()


def create(launch: Launch) -> Path:
    """Create the directory of `launch`, or take the one that is reserved for it, with all that it needs but its plan.
    Raises CtrainError, leaving nothing."""
    path = Path(launch.plan.run_directory)
    try:
        if not reserve(launch.plan) and any(path.iterdir()):
            raise _exists(path)
    except OSError as error:
        raise _not_created(path, error) from error
    try:
        _fill(path, launch)
    except OSError as error:
        raise discard(path, error) from error
    return path


def write_plan(launch: Launch) -> None:
    """Make a run of the directory of `launch`: others see it from here on. Raises CtrainError, leaving nothing."""
    path = Path(launch.plan.run_directory)
    try:
        write_json(path / run_files.PLAN, as_data(launch))
    except OSError as error:
        raise discard(path, error) from error


def discard(path: Path, error: OSError) -> CtrainError:
    """Remove a run directory that could not be filled; the error to raise."""
    shutil.rmtree(path, ignore_errors=True)
    return _not_created(path, error)


def remove_shell(launch: Launch) -> bool:
    """Remove the directory of a shell, but nothing that was written to it; whether it is gone."""
    path = Path(launch.plan.run_directory)
    for name in (*launch.scripts, *launch.files):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / run_files.NODES, ignore_errors=True)
    module = (path / run_files.PROGRAM_MODULE).parent
    shutil.rmtree(module / "__pycache__", ignore_errors=True)
    for directory in (module, path / run_files.LOGS, path / run_files.CHECKPOINT, path):
        with contextlib.suppress(OSError):  # not empty
            directory.rmdir()
    return not path.exists()


def _fill(path: Path, launch: Launch) -> None:
    of_watch = (run_files.WATCHED, run_files.STACKS) if launch.plan.is_watched else ()
    for name in (run_files.LOGS, run_files.NODES, run_files.CHECKPOINT, *of_watch):
        (path / name).mkdir()
    collectives = path / run_files.COLLECTIVES
    if any(Path(value).parent == collectives for value in launch.plan.environment.variables.values()):
        collectives.mkdir()
    if not launch.plan.program.interactive:
        lock = path / run_files.SUBMIT_LOCK  # first: what copies code knows the directory by that, and leaves it out
        lock.touch(mode=0o600)
        lock.write_bytes(run_files.PREPARING)
        shared_files.create(path, launch.plan)
    if launch.plan.mounts.code:
        code_copy.copy(launch.plan.mounts.code, path)
    if launch.plan.checks.preflight:
        left_out = shutil.ignore_patterns("__*", run_files.RENDEZVOUS)
        shutil.copytree(payload.PREFLIGHT, path / run_files.PREFLIGHT_PROGRAMS, ignore=left_out)
    for name in launch.files:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).touch(mode=0o600)
        (path / name).write_text(payload.text(name), encoding="utf-8")
    for name, text in launch.scripts.items():
        (path / name).touch(mode=0o600)  # task.sh holds values of secrets
        (path / name).write_text(text, encoding="utf-8", errors="surrogateescape")


def _exists(path: Path) -> CtrainError:
    return UsageError(f"run {path} already exists", "Choose another --name")


def _not_created(path: Path, error: OSError) -> CtrainError:
    if isinstance(error, shutil.Error):  # of a tree, whose first error it has as text alone
        text = error.args[0][0][2]
        number = re.match(r"\[Errno (\d+)\]", text)
        error = OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(None, text)
    kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else CtrainError
    return kind(f"cannot create the run directory {path}: {error.strerror}", "Choose another parent with --runs DIR")


def as_data(launch: Launch) -> dict[str, Any]:
    """The launch as plain data, for --dry-run --json and plan.json. Values of secrets are masked."""
    data = {"schema": SCHEMA, **dataclasses.asdict(launch)}
    environment = data["plan"]["environment"]["variables"]
    for name in secret_names(environment):
        value, environment[name] = environment[name], MASK
        written = f"{name}={shlex.quote(value)}"  # the whole assignment: a short value may occur elsewhere, too
        data["scripts"] = {file: text.replace(written, f"{name}={MASK}") for file, text in data["scripts"].items()}
    return data


def load_launch(run: Path) -> Launch:
    """The launch in plan.json, in which keys that are younger than it have their defaults. Raises DataError or
    ConfigError."""
    path = run / run_files.PLAN
    data = read_json(path)
    schema = data.pop("schema", 1)
    if type(schema) is not int or schema > SCHEMA:
        raise unsupported(schema, path, f"1 to {SCHEMA}")
    if schema < GROUPED_SINCE:
        from ctrain_runtime.run import old_plan  # start-up is measured

        data = old_plan.group(data)
    return load_written(Launch, data, path)


def unsupported(schema: Any, path: Path, supported: str) -> ConfigError:
    """Of a file that another ctrain has written."""
    problem = f"unsupported schema {schema!r} in {path} (supported: {supported})"
    return ConfigError(problem, "Use the ctrain that wrote it, or a newer one")


def load_written(kind: type[T], data: dict[str, Any], path: Path) -> T:
    """What a ctrain has written, of a schema that this one knows. Raises ConfigError: also for keys of a newer one."""
    try:
        return config.load(kind, data, str(path))
    except ConfigError as error:
        raise ConfigError(error.message, "If a newer ctrain wrote it, use that one; else it is damaged") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run directory. Raises DataError without the file, ConfigError if it is damaged."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"{path.parent} is not a run directory: cannot read {path.name}: {error.strerror}"
        raise DataError(problem, "List runs with: ctrain runs") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is damaged: not a JSON object")
    return data


def write_json(path: Path, data: Any) -> None:
    """Replace a file atomically: readers never see a partial one. Raises OSError, leaving nothing behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def checkpoint_of(run: Path) -> Path:
    """The checkpoint directory of an earlier run, for --resume. Raises DataError if it is empty."""
    checkpoint = run.resolve() / run_files.CHECKPOINT
    if not checkpoint.is_dir() or not any(checkpoint.iterdir()):
        raise DataError(f"run {run} has no checkpoint to resume from", f"Expected in {checkpoint}")
    return checkpoint
