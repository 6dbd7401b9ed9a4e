"""From the submission of a run to its first step, and to its end: what took how long, by the events that exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Optional

from ctrain_runtime.base.text import pluralize
from ctrain_runtime.report.series import Metrics
from ctrain_runtime.run import events
from ctrain_runtime.run.events import Event
from ctrain_runtime.run.submit import Run


@dataclass(frozen=True)
class Phase:
    """Times are in seconds since the epoch."""

    name: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def phases(run: Run, metrics: Metrics) -> list[Phase]:
    """What a run did one after the other, as far as it is known. Those before the first step are of the first job and
    attempt, since a training goes on in later ones; clocks of hosts that differ make none negative."""
    all_jobs = events.read_all_job_events(run.path)
    job = _first_job(all_jobs)
    every = events.read_all_node_events(run.path)
    nodes = events.of_attempt(every, 0)
    submitted = run.record.attempts[0].submitted if run.record.attempts else run.record.created
    ranks_up = _last(nodes, "run", "started")
    joined = _last(nodes, "world", "joined")
    first_step = metrics.first_time
    again = f", with {pluralize(len(run.record.restarts), 'restart')}" if run.record.restarts else ""
    training = ("training" if first_step else "the program") + again
    imports = "containers, imports" if joined else "containers, imports, first step"
    ends: tuple[tuple[str, Optional[float]], ...] = (
        ("queue", _first(job, "before", "started")),
        ("copies to the nodes", _last(job, "stage-in", "ended")),
        ("preflight", _last(job, "preflight", "passed") or _last(job, "preflight", "failed")),
        ("start of the ranks", ranks_up),
        (imports, joined or first_step),
        ("first step", first_step if joined else None),
        (training, _last(every, "run", "ended", of_rank=True)),
        ("end", _last(all_jobs, "after", "ended")),
    )
    return _in_order(datetime.fromisoformat(submitted).timestamp(), ends)


def _in_order(begin: float, ends: Sequence[tuple[str, Optional[float]]]) -> list[Phase]:
    known = []
    for name, end in ends:
        if end is not None:
            known.append(Phase(name, begin, max(begin, end)))
            begin = known[-1].end
    return known


def _first_job(job: list[Event]) -> list[Event]:
    """The events up to the second start of job.sh, if the job was queued again."""
    starts = [number for number, event in enumerate(job) if event.stage == "before"]
    return job[: starts[1]] if len(starts) > 1 else job


def _times(recorded: list[Event], stage: str, what: str, *, of_rank: bool = False) -> list[float]:
    return [
        event.time
        for event in recorded
        if event.stage == stage and event.what == what and event.time and (event.rank is not None or not of_rank)
    ]


def _first(recorded: list[Event], stage: str, what: str) -> Optional[float]:
    return min(_times(recorded, stage, what), default=None)


def _last(recorded: list[Event], stage: str, what: str, *, of_rank: bool = False) -> Optional[float]:
    return max(_times(recorded, stage, what, of_rank=of_rank), default=None)
