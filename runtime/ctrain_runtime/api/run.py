"""Runs as programs see them: each call looks at the run's directory, so an object is never out of date."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional, Union

from ctrain_runtime.api.job import Job
from ctrain_runtime.base import run_files
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.run import directory, logs, parent_directories, wait
from ctrain_runtime.run.cancel import cancel
from ctrain_runtime.run.follow import Metrics, read_text
from ctrain_runtime.run.pick_up import find_run, pick_up, refresh
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.run.record import Record
from ctrain_runtime.run.request import make_request
from ctrain_runtime.run.submit import submit as submit_launch


@dataclass(frozen=True)
class Plan:
    """What a job would run, and where. `data` is all of it, as `ctrain run --dry-run --json` prints it; `notes` are the
    lines for users."""

    run_directory: Path
    command: tuple[str, ...]
    image: str
    nodes: int
    ranks: int
    notes: tuple[str, ...]
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """How a run ended. `ending` is one of docs/how-a-run-ends.md, `code` 0 only if that is `completed`; `record` is all
    of record.json, `metrics` what the program has written to metrics.jsonl."""

    run: str
    directory: Path
    ending: str
    code: int
    reason: str
    parameters: Mapping[str, str]
    metrics: tuple[Mapping[str, Any], ...]
    record: Mapping[str, Any]

    @property
    def completed(self) -> bool:
        return self.code == 0

    def last(self, key: str) -> Any:
        """The last value that the program has written under a key. Raises KeyError if it has written none."""
        for line in reversed(self.metrics):
            if key in line:
                return line[key]
        raise KeyError(f"run {self.run} has no {key!r} in its {run_files.METRICS}")


@dataclass(frozen=True)
class Run:
    """A run of the caller. It depends on no process: the same directory can be attached to from anywhere."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    def phase(self) -> str:
        """`waiting`, `running` or `ended`; `unknown` if nothing tells. Raises CtrainError."""
        return refresh(pick_up(self.directory))[0].phase

    def result(self) -> Optional[Result]:
        """How it ended; None if it has not. Raises CtrainError."""
        _, conclusion = refresh(pick_up(self.directory))
        return _as_result(conclusion.record) if conclusion else None

    def wait(self, timeout: Optional[float] = None) -> Result:
        """Wait for its end. Raises TimeoutError after `timeout` seconds, CtrainError if nothing can be known of it."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for _, _, record in wait.ends([pick_up(self.directory)], deadline):
            return _as_result(record)
        raise TimeoutError(f"run {self.name} has not ended within {timeout} s")

    def metrics(self) -> list[dict[str, Any]]:
        """What its program has written to metrics.jsonl so far."""
        return Metrics(self.directory / run_files.METRICS).read()

    def log(self, rank: int = 0) -> str:
        """The output of a rank so far; "" without any. Raises UsageError for a rank that it does not have."""
        log = logs.select(pick_up(self.directory).plan, [rank])[0]
        lines = io.StringIO(read_text(log.path), newline="\n")
        return "".join(line[len(log.keep) :] for line in lines if line.startswith(log.keep))

    def cancel(self) -> Result:
        """Cancel it and wait for its end, for a minute at most; of one that has ended, how. Raises SchedulerError."""
        return _as_result(cancel(pick_up(self.directory)).record)


def plan(job: Job) -> Plan:
    """What `job` would run, and where: starts nothing, pulls nothing. Raises CtrainError if it could not run."""
    prepared = prepare(make_request(job, dry_run=True))
    made = prepared.launch.plan
    where, program = Path(made.run_directory), made.program
    size, data = made.size, directory.as_data(prepared.launch)
    return Plan(where, program.command, made.image.path, size.nodes, size.world_size, prepared.notes, data)


def submit(job: Job) -> Run:
    """Submit `job`; returns once it is queued. Raises CtrainError."""
    return Run(submit_launch(prepare(make_request(job)).launch).path)


def attach(run: Union[str, Path] = directory.LAST, *, runs: str = "", site: str = "") -> Run:
    """An earlier run, by its name, its directory, its job, or `last`. Raises CtrainError if there is none."""
    path = find_run(str(run), *parent_directories.searched(site, runs))
    pick_up(path)
    return Run(path)


def _as_result(record: Record) -> Result:
    ended, where = record.exit, Path(record.run_directory)
    if not ended:
        raise CtrainError(f"run {record.run} has no recorded end", f"See: ctrain status {where}")
    read = tuple(Metrics(where / run_files.METRICS).read())
    names = (record.run, where, ended.ending.value, ended.code, ended.reason)
    return Result(*names, record.parameters, read, asdict(record))
