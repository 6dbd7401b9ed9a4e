"""record.json: what was run, and how it ended. Written by the process that watches a run, read by later ones."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.plan.model import Expectation, LaunchPlan
from ctrain_runtime.run import directory, ending, revision
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.measured import Measured
from ctrain_runtime.run.world import World

SCHEMA = 3
WITHOUT_ENDING = 2  # the schema before Exit had an ending


@dataclass(frozen=True)
class Exit:
    """How a run ended. `by`: the origin of the exit code, the program or whatever ended it."""

    code: int
    reason: str
    by: str  # program, ctrain, scheduler or user
    ending: Ending


@dataclass(frozen=True)
class Attempt:
    """One job of a run; times are ISO 8601 in UTC.

    `name`: the job's name for users; `outcome`: one of schedulers.protocol.Outcome; `word`: the scheduler's own state.
    `cluster`: where the job's number counts ("": unknown, or a process).
    """

    job_id: str
    name: str
    submitted: str
    start: Optional[str] = None
    end: Optional[str] = None
    outcome: str = ""
    word: str = ""
    cluster: str = ""


@dataclass(frozen=True)
class Restart:
    """A further start of the program: after a failure in the same job, or once its job was queued again. `attempt`
    counts from 1; `reason` and `code` are those of the failure (0: none is known); `start`: where the program was to
    start, the last checkpoint or the start."""

    attempt: int
    time: str
    reason: str
    code: int
    start: str
    requeued: bool = False


@dataclass(frozen=True)
class Record:
    """The record of a run: record.json.

    `nodes`: the hosts in the order of the ranks; `environment`: names only; `revision`: the git commit of the job's
    directory, `uncommitted`: it differs from that. `preflight`: its measurements, and why it failed. `parameters`: the
    settings of the program, which are words of the command. `estimate` and `measured`: the expected and the measured
    needs, if --estimate was given. `world`: the certificate of who joined, null in records of older versions.

    `world`, `exit` and `end` are null until the run is known to have ended. `doubtful`: files were missing that may
    appear later, and then correct how it ended.
    """

    run: str
    run_directory: str
    job: str
    site: str
    scheduler: str
    image: dict[str, str]
    layers: tuple[dict[str, str], ...]
    command: tuple[str, ...]
    data: str
    environment: tuple[str, ...]
    resume: str
    revision: str
    launcher: str
    world_size: int
    created: str
    nodes: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    restarts: tuple[Restart, ...] = ()
    start: Optional[str] = None
    end: Optional[str] = None
    exit: Optional[Exit] = None
    doubtful: bool = False
    preflight: tuple[str, ...] = ()
    estimate: Optional[Expectation] = None
    measured: Optional[Measured] = None
    world: Optional[World] = None
    parameters: dict[str, str] = field(default_factory=dict)
    uncommitted: bool = False
    schema: int = SCHEMA


def begin(plan: LaunchPlan) -> Record:
    """The record of a run that is about to be submitted."""
    image = plan.image
    return Record(
        run=plan.run,
        run_directory=plan.run_directory,
        job=plan.job,
        site=plan.site,
        scheduler=plan.scheduler,
        image={"name": image.name, "version": image.version, "digest": image.digest, "path": image.path},
        layers=tuple({"path": layer.path, "digest": layer.digest} for layer in plan.image.layers),
        command=plan.program.command,
        data=plan.mounts.data,
        environment=tuple(sorted((*plan.environment.variables, *plan.environment.passed))),
        resume=plan.mounts.resume,
        revision=revision.commit(plan.program.workdir),
        launcher=plan.program.launcher,
        world_size=plan.size.world_size,
        created=iso(time.time()),
        estimate=plan.checks.estimate,
        parameters=plan.program.parameters,
    )


def save(record: Record) -> None:
    """Replace record.json atomically. Raises OSError."""
    directory.write_json(Path(record.run_directory) / run_files.RECORD, dataclasses.asdict(record))


def load(run: Path) -> Record:
    """The record in a run directory. Raises DataError without one, ConfigError for one of another ctrain."""
    path = run / run_files.RECORD
    data = directory.read_json(path)
    if data.get("schema") == WITHOUT_ENDING:
        data = _with_ending(data)
    if data.get("schema") != SCHEMA:
        raise directory.unsupported(data.get("schema"), path, f"{WITHOUT_ENDING}, {SCHEMA}")
    return directory.load_written(Record, data, path)


def duration(record: Record) -> Optional[float]:
    """The seconds that the jobs of a run took whose end is known, without the queue; None if none is."""
    spans = [(job.start, job.end) for job in record.attempts] if len(record.attempts) > 1 else []
    spans = spans or [(record.start, record.end)]
    known = [datetime.fromisoformat(end) - datetime.fromisoformat(start) for start, end in spans if start and end]
    return sum(span.total_seconds() for span in known) if known else None


def _with_ending(data: dict[str, Any]) -> dict[str, Any]:
    """A record of the schema before, as one of this."""
    ended, attempts = data.get("exit"), data.get("attempts")
    if isinstance(ended, dict):
        last = attempts[-1] if isinstance(attempts, list) and attempts else None
        outcome = last.get("outcome") if isinstance(last, dict) else ""
        ended = {**ended, "ending": ending.of_old_record(ended, str(outcome)).value}
    return {**data, "exit": ended, "schema": SCHEMA}


def iso(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
