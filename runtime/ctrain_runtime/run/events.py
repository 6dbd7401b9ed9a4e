"""The events that a run's scripts write: of the job, and of the ranks on each node. Format: docs/run-directory.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.run.follow import parse_object, read_text


@dataclass(frozen=True)
class Event:
    """One line of an event file.

    `attempt`: how often the program had been restarted before; in a `restarted` event of job.sh, with that restart.
    `time`: in seconds since the epoch, None if the script could not get it; `signal`: as in TERM. `memory_limit`: in
    bytes, set if the kernel has killed processes that needed more (0: no limit of its own).
    """

    what: str
    stage: str = ""
    node: str = ""
    time: Optional[float] = None
    job: str = ""
    rank: Optional[int] = None
    code: Optional[int] = None
    message: str = ""
    ranks: tuple[int, ...] = ()
    of: Optional[int] = None
    signal: str = ""
    attempt: int = 0
    memory_limit: Optional[int] = None


def read_job_events(run: Path) -> list[Event]:
    """The events of job.sh, in order, since it was started last."""
    return since_last_start(read_all_job_events(run))


def since_last_start(job: list[Event]) -> list[Event]:
    """Those since job.sh was started last."""
    _, *later = [at for at, event in enumerate(job) if is_start(event)] or [0]
    return job[later[-1] if later else 0 :]


def read_all_job_events(run: Path) -> list[Event]:
    """The same since the first start: a job that was queued again starts again."""
    return read(run / run_files.EVENTS)


def is_start(event: Event) -> bool:
    """Whether with this event job.sh has begun."""
    return event.stage == "before" and event.what == "started"


def read_node_events(run: Path) -> list[Event]:
    """The events of all tasks and ranks, node by node: of the preflight, and of the program's last attempt."""
    every = read_all_node_events(run)
    return of_attempt(every, last_attempt([*read_job_events(run), *every]))


def read_all_node_events(run: Path) -> list[Event]:
    """The same of all attempts."""
    return [event for path in node_files(run) for event in read(path)]


def of_attempt(events: Iterable[Event], attempt: int) -> list[Event]:
    """Those of an attempt, and of the preflight before all."""
    return [event for event in events if event.attempt == attempt or event.stage == "preflight"]


def last_attempt(events: Iterable[Event]) -> int:
    """How often the program has been restarted."""
    return max((event.attempt for event in events), default=0)


def node_files(run: Path) -> list[Path]:
    """The files of the events of tasks and ranks, one per node."""
    return sorted((run / run_files.NODES).glob("*.jsonl"))


def has_started(events: Iterable[Event]) -> bool:
    """Whether job.sh does more than wait for an earlier run."""
    return any(event.stage != "queue" for event in events)


def end_code(events: Iterable[Event]) -> Optional[int]:
    """The exit code that job.sh wrote as its last act; None before, and if it could not write."""
    return next((event.code for event in events if event.stage == "after" and event.what == "ended"), None)


def job_id(events: Iterable[Event]) -> str:
    """The id of the job that wrote `events`; "" before it has started."""
    return next((event.job for event in events if event.job), "")


def read(path: Path) -> list[Event]:
    """The events in a file. An incomplete last line is ignored: a full disk or a killed node truncates it anywhere."""
    return [event for event in map(_parse, read_text(path).split("\n")[:-1]) if event]


def _parse(line: str) -> Optional[Event]:
    data = parse_object(line) or {}
    if not isinstance(data.get("what"), str):
        return None
    return Event(
        what=data["what"],
        stage=_typed(data, "stage", str) or "",
        node=_typed(data, "node", str) or "",
        time=_typed(data, "time", (int, float)),
        job=_typed(data, "job", str) or "",
        rank=_typed(data, "rank", int),
        code=_typed(data, "code", int),
        message=_typed(data, "message", str) or "",
        ranks=tuple(rank for rank in _typed(data, "ranks", list) or () if isinstance(rank, int)),
        of=_typed(data, "of", int),
        signal=_typed(data, "signal", str) or "",
        attempt=_typed(data, "attempt", int) or 0,
        memory_limit=_typed(data, "memory_limit", int),
    )


def _typed(data: dict[str, Any], key: str, kind: Any) -> Any:
    value = data.get(key)
    return value if isinstance(value, kind) and not isinstance(value, bool) else None
