"""A run whose job was queued again, by files that job.sh and the ranks have left."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime.run import record, requeues, restarts
from ctrain_runtime.run.conclude import conclude
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.pick_up import current_status
from ctrain_runtime.run.record import Attempt, Restart
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Outcome, Status
from samples.runs import StandIn, submitted, write_events

COMPLETED = Status("ended", "COMPLETED", Outcome.COMPLETED)
CANCELLED = Status("ended", "CANCELLED", Outcome.CANCELLED_BY_USER)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return submitted(tmp_path / "run", StandIn(COMPLETED), ranks_per_node=1, nodes=1, retries=3)


def write_job(run: Run, attempt: int, code: Optional[int], *last: dict[str, Any], warned: bool = False) -> None:
    """What a job and its rank write from `attempt` hundred seconds on; `last` are job.sh's last events."""
    at = 100.0 * (attempt + 1)
    write_events(run.path, {"what": "started", "stage": "before", "time": at, "job": "7"})
    if attempt:
        go_on = {"attempt": attempt, "message": "the last checkpoint"}
        write_events(run.path, {"what": "continued", "stage": "before", "time": at, **go_on})
    who = {"attempt": attempt, "node": "gpu00", "rank": 0}
    write_events(run.path, {"what": "started", "time": at + 1, **who}, node=0)
    if warned:
        write_events(run.path, {"what": "signalled", "time": at + 2, "signal": "USR1", **who}, node=0)
    if code is not None:
        write_events(run.path, {"what": "ended", "time": at + 9, "code": code, **who}, node=0)
    write_events(run.path, *({"time": at + 10, **event} for event in last))


REQUEUED = {"what": "requeued", "message": "time limit"}
TERMINATED = {"what": "signalled", "signal": "TERM"}


def ended(code: int) -> dict[str, Any]:
    return {"what": "ended", "stage": "after", "code": code}


def test_a_run_of_three_jobs_is_one_record(run: Run) -> None:
    write_job(run, 0, 143, TERMINATED, REQUEUED)
    write_job(run, 1, None)  # its node failed
    write_job(run, 2, 0, ended(0))
    whole = conclude(run, COMPLETED).record
    assert whole.exit and (whole.exit.ending, whole.exit.code) == (Ending.COMPLETED, 0)
    at = {seconds: record.iso(seconds) for seconds in (100, 110, 200, 300, 310)}
    first, second, third = whole.attempts
    assert (first.start, first.end, first.outcome, first.word) == (at[100], at[110], "requeued", "time limit")
    assert (second.submitted, second.start, second.outcome, second.word) == (
        *(at[110], at[200], "requeued", requeues.UNKNOWN),
    )
    assert (third.start, third.end, third.outcome, third.word) == (at[300], at[310], "completed", "COMPLETED")
    assert {job.job_id for job in whole.attempts} == {"7"}
    assert whole.restarts == (
        Restart(1, at[200], "job 7 was queued again: time limit", 0, "the last checkpoint", requeued=True),
        Restart(2, at[300], f"job 7 was queued again: {requeues.UNKNOWN}", 0, "the last checkpoint", requeued=True),
    )
    assert (whole.start, whole.end) == (at[100], at[310])
    assert (second.end, record.duration(whole)) == (None, 20.0), "when a lost job ended is unknown"
    assert record.load(run.path) == whole


def test_nodes_that_are_left_out_are_named(run: Run) -> None:
    write_job(run, 0, 143, TERMINATED, REQUEUED, {"what": "left out", "message": "gpu2,gpu3"})
    write_job(run, 1, 0, ended(0))
    [again] = conclude(run, COMPLETED).record.restarts
    assert again.reason == "job 7 was queued again, without gpu2,gpu3: time limit"


def test_a_run_that_is_cancelled_while_its_job_waits_again(run: Run) -> None:
    write_job(run, 0, 143, TERMINATED, REQUEUED)
    (run.path / "cancelled").touch()
    whole = conclude(run, CANCELLED).record
    assert whole.exit and (whole.exit.ending, whole.exit.code) == (Ending.CANCELLED, 130)
    assert [(job.outcome, job.start is None) for job in whole.attempts] == [
        ("requeued", False),
        ("cancelled by its user", True),
    ]


@pytest.mark.parametrize(
    ("last", "answer", "phase"),
    [
        ((), Status("running"), "running"),
        ((REQUEUED,), Status("running"), "waiting"),  # Slurm: COMPLETING
        ((REQUEUED,), Status("waiting", "BeginTime"), "waiting"),
        ((REQUEUED, {"what": "not requeued", "message": "x"}), Status("running"), "running"),
        ((REQUEUED,), CANCELLED, "ended"),
        ((ended(3),), Status("running"), "ended"),
    ],
)
def test_where_a_job_stands_that_is_queued_again(
    run: Run, last: tuple[dict[str, Any], ...], answer: Status, phase: str
) -> None:
    write_job(run, 0, 143, *last)
    run.scheduler.statuses = [answer]  # type: ignore[attr-defined]  # a stand-in
    assert current_status(run).phase == phase


def test_a_signal_that_ended_the_job_before_interrupts_nothing_in_the_last(run: Run) -> None:
    write_job(run, 0, 143, TERMINATED, REQUEUED)
    write_job(run, 1, 3, ended(3))
    whole = conclude(run, Status("ended", "FAILED", Outcome.FAILED)).record.exit
    assert whole and (whole.ending, whole.code) == (Ending.FAILED, 3)


def test_a_program_that_is_done_soon_after_the_warning_is_complete(run: Run) -> None:
    write_job(run, 0, 0, ended(0), warned=True)
    whole = conclude(run, COMPLETED).record.exit
    assert whole and whole.ending is Ending.COMPLETED


def test_why_a_job_was_not_queued_once_more(run: Run) -> None:
    given_up = {"what": "not requeued", "message": "retries used: 3 of 3"}
    write_job(run, 0, 143, TERMINATED, given_up, ended(143))
    whole = conclude(run, Status("ended", "TIMEOUT", Outcome.TIMEOUT)).record.exit
    assert whole and whole.ending is Ending.TIME_LIMIT
    assert whole.reason == "time limit reached (TIMEOUT); retries used: 3 of 3"


def test_one_that_saves_and_leaves_with_no_retries_left_is_not_complete(run: Run) -> None:
    write_job(run, 0, 0, {"what": "not requeued", "message": "retries used: 3 of 3"}, ended(0), warned=True)
    whole = conclude(run, COMPLETED).record.exit
    assert whole and whole.ending is Ending.SAVED_AND_LEFT and whole.reason.endswith("; retries used: 3 of 3")


def test_restarts_in_a_job_and_by_the_queue_are_told_apart(run: Run) -> None:
    write_job(run, 0, 3, {"what": "restarted", "attempt": 1, "code": 3, "message": "the start"}, REQUEUED)
    write_job(run, 2, 0, ended(0))
    found = restarts.find(run)
    assert [(restart.attempt, restart.requeued, restart.reason) for restart in found] == [
        (1, False, "rank 0 on gpu00 failed: exit code 3"),
        (2, True, "job 7 was queued again: time limit"),
    ]


def test_the_job_of_an_old_record_without_events(run: Run) -> None:
    assert requeues.jobs(run.record, [], run.scheduler) == (
        Attempt("7", "job 7", run.record.attempts[0].submitted, cluster=run.plan.placement.cluster),
    )


def test_the_end_of_a_job_that_has_been_queued_again_meanwhile_is_not_that_of_the_run(tmp_path: Path) -> None:
    """PBS gives the next job another number, and that job may come between two looks of a watch."""

    class Late(StandIn):
        def status(self, *_: Any) -> Status:
            write_events(run.path, {"what": "queued", "stage": "run", "time": 111.0, "job": "8"})
            return COMPLETED

    run = submitted(tmp_path / "run", Late(COMPLETED), ranks_per_node=1, nodes=1, retries=3)
    write_job(run, 0, 143, TERMINATED, REQUEUED)
    assert requeues.ask(run) == Status("waiting")
    assert requeues.followed(run).job_id == "8"
