"""Where a run stands now: by its record, its events, the ends of its files, and the last word of the scheduler."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.base.text import clock_time, format_duration, pluralize
from ctrain_runtime.base.time_limit import format_limit
from ctrain_runtime.cli.progress import LONGEST_SECONDS, last_with_loss, whole
from ctrain_runtime.run import events, shared_files
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.follow import parse_object
from ctrain_runtime.run.pick_up import refresh
from ctrain_runtime.run.record import Record, duration
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Status

HEAD_LINES = 50  # of metrics.jsonl, in which its first step is looked for


@dataclass(frozen=True)
class RunState:
    """`elapsed`, `left` (to the time limit) and `eta` (of the training) are in seconds, None if unknown; `metrics` is
    the last record that shows where the training is, {} without one. `starts` counts how often its job has started."""

    run: Run
    record: Record
    status: Status
    starts: int
    elapsed: Optional[float]
    left: Optional[float]
    metrics: Mapping[str, Any]
    eta: Optional[float]

    @property
    def word(self) -> str:
        """As in waiting, running, unknown, completed, cancelled by an administrator, time limit, failed (137)."""
        return state(self.record, self.status)


def look(run: Run) -> RunState:
    """The state of a run now; one that has ended is concluded. Raises CtrainError."""
    status, conclusion = refresh(run)
    return as_state(run, status, conclusion.record if conclusion else run.record)


def as_state(run: Run, status: Status, record: Record) -> RunState:
    """The state of a run with this status and record."""
    starts = [event for event in events.read_all_job_events(run.path) if events.is_start(event)]
    begun, now = starts[-1].time if starts else None, time.time()
    elapsed = now - begun if begun and not record.exit else None
    if record.start and record.end:
        elapsed = duration(record)
    limit = run.plan.size.time_limit
    runs_on = elapsed is not None and not record.exit
    metrics = last_metrics(run.path)
    return RunState(
        run=run,
        record=record,
        status=status,
        starts=len(starts),
        elapsed=elapsed,
        left=max(0.0, limit * 60 - elapsed) if limit is not None and elapsed is not None and runs_on else None,
        metrics=metrics,
        eta=_remaining(run.path / run_files.METRICS, metrics, begun, now) if runs_on else None,
    )


def state(record: Record, status: Status) -> str:
    """The state in a word or two, and how often the program was restarted."""
    known = len(record.restarts)
    if not record.exit:
        known = events.last_attempt(events.read_job_events(Path(record.run_directory)))
    return _state(record, status) + (f", {pluralize(known, 'restart')}" if known else "")


def _state(record: Record, status: Status) -> str:
    """Without an answer of what could know, it is unknown whether a run still goes on."""
    if not record.exit:
        return "unknown" if status.phase == "running" and status.note else status.phase
    ending = record.exit.ending
    if ending is Ending.CANCELLED and record.exit.by == "scheduler" and record.attempts:
        return record.attempts[-1].outcome or ending.value
    return f"{ending.value} ({record.exit.code})" if ending in (Ending.FAILED, Ending.REFUSED) else ending.value


def in_words(of_run: RunState) -> str:
    """The state with its reason, and how long the run has taken or may still take."""
    status, ended = of_run.status, of_run.record.exit
    if ended:
        took = f" after {format_duration(of_run.elapsed)}" if of_run.elapsed is not None else ""
        return f"{of_run.word}{took}" + (f": {ended.reason}" if ended.reason != of_run.word.partition(",")[0] else "")
    if status.phase == "waiting":
        reason = f" ({status.word})" if status.word not in ("", "None") else ""
        start = f", expected to start {clock_time(status.starts_at)}" if status.starts_at else ""
        return f"waiting{reason}{start}"
    limit = of_run.run.plan.size.time_limit
    of = f" of {format_limit(limit)}" if limit is not None else ""
    ran = f" for {format_duration(of_run.elapsed)}{of}" if of_run.elapsed is not None else ""
    left = f", {format_duration(of_run.left)} left" if of_run.left is not None else ""
    return (
        f"running{ran}{left}"
        if of_run.word.startswith("running")
        else f"unknown{', if it goes on' + ran + left if ran else ''}"
    )


def last_metrics(run: Path) -> Mapping[str, Any]:
    """The last record of metrics.jsonl with a step and a loss; {} without one."""
    lines = shared_files.last_lines(run / run_files.METRICS)
    return last_with_loss([record for record in map(parse_object, lines) if record]) or {}


def _remaining(path: Path, last: Mapping[str, Any], begun: Optional[float], now: float) -> Optional[float]:
    """The remaining seconds of a training at its pace since the start of the job; None if that is unknown."""
    step, steps, first = whole(last.get("step")), whole(last.get("steps")), _first_step(path)
    if step is None or steps is None or first is None or begun is None or not first <= step <= steps:
        return None
    with suppress(OSError):
        written = path.stat().st_mtime
        left = (written - begun) / (step - first + 1) * (steps - step) - (now - written)
        return left if 0 < left <= LONGEST_SECONDS else None
    return None


def _first_step(path: Path) -> Optional[int]:
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        records = (parse_object(line) or {} for line in islice(file, HEAD_LINES))
        return next((step for step in (whole(record.get("step")) for record in records) if step is not None), None)
    return None
