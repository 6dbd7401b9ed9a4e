"""Hangs of a run, by what its judge has written among the events of the job (payload/judge.py)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from ctrain_runtime.run import events
from ctrain_runtime.run.events import Event
from ctrain_runtime.run.ranks import Rank

STAGE = "watch"
HUNG, WENT_ON, GIVEN_UP = "hung", "went on", "given up"
LEFT_SECONDS = 300.0  # as in judge.py: ranks that do the same end at about the same time


def lines(job: Iterable[Event]) -> list[str]:
    """What users should read of the hangs so far."""
    shown = {HUNG: "hung: {}", WENT_ON: "goes on {}"}
    return [shown[event.what].format(event.message) for event in job if event.stage == STAGE and event.what in shown]


def left_before(ranks: list[Rank], signalled: Optional[float], ended: float) -> list[Rank]:
    """The ranks that ended with code 0 long before the others did, or were asked to."""
    end = ended if signalled is None else signalled
    left = [rank for rank in ranks if rank.exit_code == 0 and rank.end and rank.end < end - LEFT_SECONDS]
    return left if len(left) < len(ranks) else []


def standing(run: Path) -> str:
    """The hang of a run that has not gone on since; "" without one."""
    return of_attempt(events.read_job_events(run))


def of_attempt(job: list[Event]) -> str:
    """The same, by the events of the job: that of its last attempt."""
    attempt, message = events.last_attempt(job), ""
    for event in job:
        if event.stage == STAGE and event.attempt == attempt:
            message = event.message if event.what in (HUNG, GIVEN_UP) else ""
    return message


def given_up(job: list[Event], attempt: Optional[int] = None) -> str:
    """Why an attempt, or the last one, was ended as one that hangs; "" if it was not."""
    number = events.last_attempt(job) if attempt is None else attempt
    message = next((event.message for event in job if event.what == GIVEN_UP and event.attempt == number), "")
    return f"hung: {message}" if message else ""
