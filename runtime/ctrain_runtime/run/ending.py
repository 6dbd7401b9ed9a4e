"""The vocabulary of endings: every run that has ended has one of them. Their evidence: docs/how-a-run-ends.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Optional

from ctrain_runtime.run import ranks
from ctrain_runtime.run.events import Event
from ctrain_runtime.run.ranks import Rank
from ctrain_runtime.schedulers.protocol import Outcome

TERMINATED = 143  # 128 + SIGTERM: the code of a run that was ended early and has none of its own
WARNED_SECONDS = 900.0  # a program that ends with 0 within these after a warning signal has probably left because of it


class Ending(str, Enum):
    """How a run ended. Only `completed` has exit code 0."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    PREEMPTED = "preempted"
    SAVED_AND_LEFT = "saved and left"
    INTERRUPTED = "interrupted"
    NODE_FAILURE = "node failure"
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"
    REFUSED = "refused"
    NEVER_STARTED = "never started"
    UNKNOWN = "unknown"


# Whoever ended the run has asked its programs to end, and these may have saved.
EARLY = (Ending.CANCELLED, Ending.TIME_LIMIT, Ending.PREEMPTED, Ending.INTERRUPTED)
# The job was ended from outside, by the scheduler's word: no rank is to blame.
FROM_OUTSIDE = {
    Outcome.CANCELLED: Ending.CANCELLED,
    Outcome.CANCELLED_BY_USER: Ending.CANCELLED,
    Outcome.CANCELLED_BY_ADMIN: Ending.CANCELLED,
    Outcome.PREEMPTED: Ending.PREEMPTED,
    Outcome.TIMEOUT: Ending.TIME_LIMIT,
    Outcome.NODE_FAILURE: Ending.NODE_FAILURE,
    Outcome.OUT_OF_MEMORY: Ending.OUT_OF_MEMORY,
}


@dataclass(frozen=True)
class Interruption:
    """The signal that reached the run's programs, or job.sh, before they had ended. `time` is None if unknown."""

    signal: str  # TERM, USR1, USR2
    time: Optional[float]


def interruption(job: list[Event], nodes: list[Event], recorded_ranks: int) -> Optional[Interruption]:
    """What reached a run before its end; None if nothing did that could have ended it.

    Tasks record a signal only while their program runs. job.sh may get one when all ranks have just ended: that has
    interrupted nothing.
    """
    reached = [event for event in nodes if event.what == "signalled"]
    terminated = next((event for event in reached if event.signal == "TERM"), None)
    ended_well = [rank for rank in ranks.from_events(nodes) if rank.exit_code == 0]
    if terminated is None and len(ended_well) < recorded_ranks:
        terminated = next((event for event in job if event.what == "signalled" and event.signal == "TERM"), None)
    if terminated:
        return Interruption("TERM", terminated.time)
    return _warning([*job, *reached], ended_well)


def cut_short(nodes: list[Event]) -> list[Rank]:
    """The ranks that SIGTERM has reached, and that were killed after it, or have not recorded how they ended."""
    reached = {event.rank for event in nodes if event.what == "signalled" and event.signal == "TERM"}
    return [
        rank for rank in ranks.from_events(nodes) if rank.number in reached and rank.exit_code in (None, ranks.KILLED)
    ]


def _warning(events: list[Event], ended_well: list[Rank]) -> Optional[Interruption]:
    """The last warning signal, unless the program went on for so long after it that it has not left because of it."""
    begun = min((rank.start for rank in ended_well if rank.start), default=0.0)
    ended = max((rank.end for rank in ended_well if rank.end), default=0.0)
    for event in reversed(events):
        may_have_ended_it = event.time is None or (begun <= event.time and ended - event.time <= WARNED_SECONDS)
        if event.what == "signalled" and event.signal.startswith("USR") and may_have_ended_it:
            return Interruption(event.signal, event.time)
    return None


def of_old_record(ended: Mapping[str, Any], outcome: str) -> Ending:
    """The ending in an `exit` of schema 2, which had none, and the outcome of its last attempt."""
    if ended.get("code") == 0:
        return Ending.COMPLETED
    by = ended.get("by")
    endings = {known.value: value for known, value in FROM_OUTSIDE.items()}
    if by == "user":
        return Ending.CANCELLED
    if by == "scheduler":
        never = outcome == Outcome.NEVER_STARTED.value
        return Ending.NEVER_STARTED if never else endings.get(outcome, Ending.UNKNOWN)
    return Ending.REFUSED if by == "ctrain" else Ending.FAILED
