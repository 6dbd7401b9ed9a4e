from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.cli import run_state as module
from ctrain_runtime.cli.run_state import look, state
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.record import Exit
from ctrain_runtime.schedulers.protocol import Status
from samples.plans import LOCAL
from samples.runs import StandIn, submitted, write_events

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("ended", "outcome", "word"),
    [
        (Exit(0, "completed", "program", Ending.COMPLETED), "completed", "completed"),
        (Exit(130, "cancelled", "user", Ending.CANCELLED), "cancelled by its user", "cancelled"),
        (
            Exit(143, "why", "scheduler", Ending.CANCELLED),
            "cancelled by an administrator",
            "cancelled by an administrator",
        ),
        (Exit(143, "why", "scheduler", Ending.TIME_LIMIT), "time limit reached", "time limit"),
        (Exit(143, "why", "scheduler", Ending.INTERRUPTED), "failed", "interrupted"),
        (Exit(143, "why", "scheduler", Ending.NODE_FAILURE), "node failure", "node failure"),
        (Exit(143, "why", "program", Ending.SAVED_AND_LEFT), "completed", "saved and left"),
        (Exit(137, "why", "program", Ending.OUT_OF_MEMORY), "failed", "out of memory"),
        (Exit(9, "why", "program", Ending.FAILED), "failed", "failed (9)"),
        (Exit(80, "why", "ctrain", Ending.REFUSED), "failed", "refused (80)"),
    ],
)
def test_the_state_of_a_run_that_has_ended_is_its_ending(tmp_path: Path, ended: Exit, outcome: str, word: str) -> None:
    run = submitted(tmp_path / "one", StandIn(), **LOCAL)
    (attempt,) = run.record.attempts
    attempts = (dataclasses.replace(attempt, outcome=outcome),)
    done = dataclasses.replace(run.record, exit=ended, attempts=attempts)
    assert state(done, Status("ended")) == word


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (Status("waiting", "Resources"), "waiting"),
        (Status("running", "SUSPENDED"), "running"),
        (Status("running", note="PBS does not answer; retrying"), "unknown"),
        (Status("unknown", note="its job belongs to cluster other"), "unknown"),
    ],
)
def test_without_an_answer_a_run_is_not_said_to_run(tmp_path: Path, status: Status, word: str) -> None:
    run = submitted(tmp_path / "one", StandIn(status))
    assert look(run).word == word


def write_metrics(run: Path, *records: dict[str, Any], ago: float = 0.0) -> None:
    path = run / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    os.utime(path, (NOW - ago, NOW - ago))


def test_times_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started 1000 s ago: steps 11 to 20 took all of that, up to 30 s ago, so 20 more take 1940 s."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    run = submitted(tmp_path / "one", StandIn())
    assert run.plan.size.time_limit == 60
    assert (look(run).elapsed, look(run).left, look(run).eta, look(run).metrics) == (None, None, None, {})
    for begun in (NOW - 5000, NOW - 1000):  # the scheduler has queued it again
        write_events(run.path, {"what": "started", "stage": "before", "time": begun, "job": "7"})
    steps = [{"note": "no step"}, *({"step": step, "steps": 40, "loss": 1.5} for step in range(11, 21))]
    write_metrics(run.path, *steps, ago=30)
    seen = look(run)
    assert (seen.elapsed, seen.left, seen.starts) == (1000, 3600 - 1000, 2)
    assert seen.metrics == steps[-1]
    assert seen.eta == pytest.approx(970 / 10 * 20 - 30)


@pytest.mark.parametrize(
    "last", [{}, {"step": 5}, {"step": 50, "steps": 40}, {"step": 1, "steps": 40}, {"step": "x", "steps": True}]
)
def test_what_programs_write_need_not_give_a_pace(
    tmp_path: Path, last: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    run = submitted(tmp_path / "one", StandIn())
    write_events(run.path, {"what": "started", "stage": "before", "time": NOW - 100, "job": "7"})
    write_metrics(run.path, {"step": 3, "steps": 40}, {"loss": 1, **last})
    assert look(run).eta is None


def test_a_first_step_is_looked_for_at_the_begin_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n" * module.HEAD_LINES + '{"step": 1}\n')
    assert module._first_step(path) is None
    assert module._first_step(tmp_path / "nowhere") is None
