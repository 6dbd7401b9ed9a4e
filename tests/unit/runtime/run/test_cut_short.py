"""Runs that were ended from outside, and whose ranks were killed before they had ended."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from ctrain_runtime.base import run_files
from ctrain_runtime.cli import run_view
from ctrain_runtime.run import conclude as module
from ctrain_runtime.run import shared_files
from ctrain_runtime.run.conclude import Conclusion, conclude
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Outcome, Status
from samples.runs import StandIn, submitted, write_end, write_ranks, write_signal

CUT = "; 2 of 4 ranks recorded no end after SIGTERM, or were killed: a checkpoint may be incomplete"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(shared_files, "has_caches", lambda _: False)
    monkeypatch.setattr(shared_files, "SYNC_SECONDS", 0.01)
    monkeypatch.setattr(module, "OUTCOME_POLL_SECONDS", 0.001)
    scheduler = StandIn(Status("ended", "X", Outcome.UNKNOWN))
    return submitted(tmp_path / "one", scheduler, nodes=2, ranks_per_node=2)


def reason(run: Run, outcome: Outcome) -> str:
    return (conclusion(run, outcome).record.exit or pytest.fail("no exit")).reason


def conclusion(run: Run, outcome: Outcome) -> Conclusion:
    return conclude(run, Status("ended", "X", outcome))


def end(run: Run, *codes: Optional[int], told: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    write_ranks(run.path, *codes)
    write_signal(run.path, *told)
    write_end(run.path, 137)


def test_a_cancelled_run_says_that_its_ranks_had_no_time_to_save(run: Run) -> None:
    """As on a busy machine, where saving takes longer than the grace period."""
    (run.path / run_files.CANCELLED).touch()
    end(run, 0, 143, None, 137)
    ended = conclusion(run, Outcome.FAILED)
    assert ended.record.exit
    assert (ended.record.exit.code, ended.record.exit.reason) == (130, f"cancelled{CUT}")
    assert run_view.ending(run.plan, ended, step=6).splitlines()[0] == f"cancelled job 7 at step 6{CUT}"


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.PREEMPTED, Outcome.CANCELLED_BY_ADMIN])
def test_so_does_one_that_the_scheduler_ended(run: Run, outcome: Outcome) -> None:
    end(run, 0, 143, None, 137)
    assert reason(run, outcome) == f"{outcome.value} (X){CUT}"


def test_ranks_that_ended_had_the_time(run: Run) -> None:
    end(run, 0, 143, 1, 0)
    assert reason(run, Outcome.TIMEOUT) == "time limit reached (X)"


def test_ranks_that_no_signal_had_reached_were_not_saving(run: Run) -> None:
    end(run, None, None, None, None, told=())
    assert reason(run, Outcome.TIMEOUT) == "time limit reached (X)"


def test_a_lost_node_is_no_grace_period(run: Run) -> None:
    end(run, 143, 143, None, None)
    assert "checkpoint" not in reason(run, Outcome.NODE_FAILURE)
