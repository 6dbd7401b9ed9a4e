"""One run from start to record. Prints nothing: a View is told what happens."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional, Protocol

from ctrain_runtime import lease
from ctrain_runtime.errors import CANCELLED, CtrainError
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.run import directory, ranks
from ctrain_runtime.run.follow import Metrics, Tail
from ctrain_runtime.schedulers import protocol, script, start
from ctrain_runtime.schedulers.handle import Handle, Status

LOOK = 0.2  # seconds between two looks at the run's files
ASK = 2.0  # seconds between two questions to the scheduler
PATIENCE = 30.0  # seconds that a cancelled run gets to end; a dead node can keep a job "completing" for ever
SETTLE = 5.0  # seconds that a shared file system gets to show the last files of an ended job

REASONS = {
    "TIMEOUT": "time limit reached",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "out of memory (Slurm's limit)",
}
TERMINATED = 143  # 128 + SIGTERM: how a job ends that its scheduler stopped


class View(Protocol):
    """Who is told what happens."""

    def submitted(self, name: str) -> None: ...
    def status(self, status: protocol.Status) -> None: ...
    def output(self, text: str) -> None: ...
    def metrics(self, records: list[dict[str, Any]]) -> None: ...
    def cancelling(self, name: str) -> None: ...


@dataclass(frozen=True)
class Exit:
    """How a run ended. `code` is the program's, or 130 when it was cancelled."""

    code: int
    reason: str


@dataclass(frozen=True)
class Record:
    """record.json. Times are ISO 8601 in UTC; `exit` and `end` are null while the run goes on."""

    run: str
    job: str
    site: str
    image: dict[str, str]
    layers: tuple[dict[str, str], ...]
    command: tuple[str, ...]
    nodes: list[str]
    world_size: int
    launcher: str
    scheduled_as: str
    submitted: str
    start: Optional[str] = None
    end: Optional[str] = None
    exit: Optional[Exit] = None


@dataclass(frozen=True)
class Outcome:
    """The record of an ended run, and the rank that failed first, if one did."""

    record: Record
    failed: Optional[ranks.Rank]


def run(launch: Launch, view: View) -> Outcome:
    """Run `launch` to its end. KeyboardInterrupt cancels the run; the record is written in every case."""
    path = directory.create(launch)
    record = _begin(launch.plan)
    lease.take(launch.plan.lease)
    try:
        handle = start.start(launch)
    except CtrainError as error:
        lease.release(launch.plan.lease)
        _save(path, dataclasses.replace(record, end=_iso(time.time()), exit=Exit(error.exit_code, error.message)))
        raise
    record = dataclasses.replace(record, scheduled_as=handle.name)
    _save(path, record)
    view.submitted(handle.name)
    status, cancelled = _watch(handle, launch.plan, view)
    lease.release(launch.plan.lease)  # only now: when ctrain itself is killed, the job goes on
    outcome = _conclude(record, launch.plan, status, cancelled)
    _save(path, outcome.record)
    return outcome


def _save(path: Path, record: Record) -> None:
    directory.write_json(path / directory.RECORD, dataclasses.asdict(record))


def _begin(plan: LaunchPlan) -> Record:
    image = {"name": plan.image.name, "version": plan.image.version, "digest": plan.image.digest}
    return Record(
        plan.run,
        plan.job,
        plan.site,
        image,
        tuple({"path": layer.path, "digest": layer.digest} for layer in plan.layers),
        plan.command,
        [],
        plan.world_size,
        plan.launcher,
        "",
        _iso(time.time()),
    )


def _watch(handle: Handle, plan: LaunchPlan, view: View) -> tuple[Status, bool]:
    """Show the run until it has ended; (its last status, whether it was cancelled)."""
    path = Path(plan.run_directory)
    log, metrics = Tail(directory.rank_log(plan, 0)), Metrics(path / directory.METRICS)
    status, asked, cancelled = Status("waiting"), -ASK, 0.0  # cancelled: when, 0 for not
    while True:
        try:
            if (path / script.EXIT_CODE).exists():  # the last act of job.sh
                handle.finish()
                status = Status("ended")
            elif time.monotonic() - asked >= ASK:
                status, asked = handle.status(), time.monotonic()
                view.status(
                    protocol.Status("waiting", status.detail)
                    if status.phase == "waiting"
                    else protocol.Status(status.phase, note=status.detail if status.phase == "running" else "")
                )
            view.metrics(metrics.read())
            view.output(log.read())
            if status.phase == "ended" or (cancelled and time.monotonic() - cancelled > PATIENCE):
                return status, bool(cancelled)
            time.sleep(LOOK)
        except KeyboardInterrupt:
            if cancelled:
                return status, True
            view.cancelling(handle.name)
            handle.cancel()
            cancelled, asked = time.monotonic(), -ASK


def _conclude(record: Record, plan: LaunchPlan, status: Status, cancelled: bool) -> Outcome:
    path = Path(plan.run_directory)
    code = _exit_code(path, wait=status.detail in ("", "COMPLETED", "FAILED") and not cancelled)
    started = ranks.read(path)
    failed = ranks.first_failure(started) if code != 0 else None
    record = dataclasses.replace(
        record,
        nodes=ranks.nodes(started),
        start=_iso(min(rank.start for rank in started)) if started else None,
        end=_iso(time.time()),
        exit=_exit(plan, status, code, cancelled, failed, len(started)),
    )
    return Outcome(record, None if cancelled or status.detail in REASONS else failed)


def _exit_code(path: Path, *, wait: bool) -> Optional[int]:
    """What job.sh wrote as its last act; None when it could not."""
    deadline = time.monotonic() + (SETTLE if wait else 0)
    while True:
        try:
            return int((path / script.EXIT_CODE).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            if time.monotonic() >= deadline:
                return None
            time.sleep(LOOK)


def _exit(
    plan: LaunchPlan,
    status: Status,
    code: Optional[int],
    cancelled: bool,
    failed: Optional[ranks.Rank],
    started: int,
) -> Exit:
    if cancelled and code != 0:
        return Exit(CANCELLED, "cancelled")
    if code == 0:
        if started == plan.world_size:
            return Exit(0, "completed")
        return Exit(1, f"only {started} of {plan.world_size} ranks ever started")
    if status.detail in REASONS:
        return Exit(code or TERMINATED, REASONS[status.detail])
    if failed:
        return Exit(failed.code or code or 1, f"rank {failed.number} on {failed.host} ended first: {failed.how()}")
    return Exit(code or 1, _last_words(plan) or f"the job ended as {status.detail or 'unknown'}")


def _last_words(plan: LaunchPlan) -> str:
    """The last line of the job's own log: why no rank could start."""
    log = Path(plan.run_directory) / script.LOGS / "job.log"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
