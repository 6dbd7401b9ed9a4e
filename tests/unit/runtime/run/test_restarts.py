"""The restarts of a run, by files that job.sh and the ranks have left."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.run import events, record, restarts
from ctrain_runtime.run.conclude import conclude
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.record import Restart
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import FailedTask, Outcome, Status
from samples.runs import StandIn, submitted, write_end, write_events

FAILED = Status("ended", "F", Outcome.FAILED)


def write_attempt(run: Path, attempt: int, *codes: Any, at: float = 100.0, signalled: tuple[int, ...] = ()) -> None:
    """What two ranks write of an attempt; None: it vanished."""
    for rank, code in enumerate(codes):
        who = {"attempt": attempt, "node": "gpu00", "rank": rank}
        write_events(run, {"what": "started", "time": at, **who}, node=0)
        if rank in signalled:
            write_events(run, {"what": "signalled", "time": at + 3, "signal": "TERM", **who}, node=0)
        if code is not None:
            write_events(run, {"what": "ended", "time": at + 5 - rank, "code": code, **who}, node=0)


def write_restart(run: Path, attempt: int, code: int = 137, at: float = 110.0) -> None:
    """As job.sh does, in its events and its log."""
    event = {"what": "restarted", "time": at, "node": "gpu00", "attempt": attempt, "code": code}
    write_events(run, {**event, "message": "the last checkpoint"})
    with (run / "logs/job.log").open("a") as log:
        log.write(f"\n--- attempt {attempt} ---\n")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return submitted(tmp_path / "run", StandIn(FAILED), ranks_per_node=2, restarts=3)


def test_each_has_the_rank_that_failed_first_before_it(run: Run) -> None:
    write_attempt(run.path, 0, 143, 137, signalled=(0,))
    write_restart(run.path, 1)
    write_attempt(run.path, 1, 3, 0, at=120)
    write_restart(run.path, 2, code=3, at=130)
    write_attempt(run.path, 2, 0, 0, at=140)
    write_end(run.path, 0)
    ended = conclude(run, Status("ended", "X", Outcome.COMPLETED)).record
    assert ended.restarts == (
        Restart(1, record.iso(110), "rank 1 on gpu00 failed: signal 9 (killed)", 137, "the last checkpoint"),
        Restart(2, record.iso(130), "rank 0 on gpu00 failed: exit code 3", 3, "the last checkpoint"),
    )
    assert (ended.exit and ended.exit.ending) is Ending.COMPLETED
    assert ended.start == record.iso(99)
    assert record.load(run.path) == ended


def test_a_rank_that_ran_out_of_memory_is_named(run: Run) -> None:
    write_attempt(run.path, 0, 143, None, signalled=(0,))
    who = {"attempt": 0, "node": "gpu00", "rank": 1}
    write_events(run.path, {"what": "ended", "time": 103.0, "code": 137, "memory_limit": 8 << 30, **who}, node=0)
    write_restart(run.path, 1)
    (restart,) = restarts.find(run)
    assert restart.code == 137
    assert restart.reason.startswith("rank 1 on gpu00 ran out of memory: limit 8.6 GB per node. Request more")


@pytest.mark.parametrize(("left_out", "rank"), [("gpu00", 1), ("gpu07,gpu00", 1), ("gpu07", 0)])
def test_a_rank_that_was_lost_with_its_node_is_named(run: Run, left_out: str, rank: int) -> None:
    """The other one lost its connection, and could record its end."""
    write_attempt(run.path, 0, 1, None)
    restart = {"what": "restarted", "time": 110.0, "node": "gpu00", "attempt": 1, "code": 1}
    write_events(run.path, {**restart, "message": f"the last checkpoint, without {left_out}"})
    (found,) = restarts.find(run)
    assert found.reason.startswith(f"rank {rank} on gpu00 failed: {'no exit status' if rank else 'exit code 1'}")


def test_a_rank_that_had_left_before_is_named(run: Run) -> None:
    write_attempt(run.path, 0, None, None)
    for rank, code, at in ((1, 0, 103.0), (0, 1, 106.0)):
        who = {"attempt": 0, "node": "gpu00", "rank": rank}
        write_events(run.path, {"what": "ended", "time": at, "code": code, **who}, node=0)
    write_restart(run.path, 1, code=1)
    (restart,) = restarts.find(run)
    assert restart.reason == ("rank 0 on gpu00 failed: exit code 1; rank 1 on gpu00 had ended before with exit code 0")


def test_ranks_that_were_stopped_for_a_restart_have_not_been_interrupted(run: Run) -> None:
    """SIGTERM in an earlier attempt would make "saved and left" of the last one's code 0."""
    write_attempt(run.path, 0, 0, 137, signalled=(0,))
    write_restart(run.path, 1)
    write_attempt(run.path, 1, 0, 0, at=120)
    write_end(run.path, 0)
    ended = conclude(run, Status("ended", "X", Outcome.COMPLETED)).record.exit
    assert ended and ended.ending is Ending.COMPLETED


def test_a_rank_missing_in_the_last_attempt_is_not_made_up_for_by_the_first(run: Run) -> None:
    write_attempt(run.path, 0, 0, 137)
    write_restart(run.path, 1)
    write_attempt(run.path, 1, 0, at=120)
    write_end(run.path, 0)
    ended = conclude(run, Status("ended", "X", Outcome.COMPLETED)).record.exit
    assert ended and (ended.code, ended.reason) == (1, "only 1 of 2 ranks ever started")


def test_a_last_attempt_in_which_nothing_started(run: Run) -> None:
    write_attempt(run.path, 0, 0, 137)
    write_restart(run.path, 1)
    with (run.path / "logs/job.log").open("a") as log:
        log.write("srun: error: Unable to create step: Requested nodes are busy\n")
    write_end(run.path, 1)
    ended = conclude(run, FAILED).record.exit
    assert ended and ended.reason == "srun: error: Unable to create step: Requested nodes are busy"


def test_why_it_was_not_restarted_once_more(run: Run) -> None:
    write_attempt(run.path, 0, None, None)
    write_events(run.path, {"what": "not restarted", "message": "restarts used: 0 of 0"})
    write_end(run.path, 137)
    ended = conclude(run, FAILED).record.exit
    assert ended and ended.reason.endswith("(node failed, or all its processes were killed); restarts used: 0 of 0")


def test_a_cancellation_needs_no_such_reason(run: Run) -> None:
    write_attempt(run.path, 0, 3, 0)
    write_events(run.path, {"what": "not restarted", "message": "restarts used: 0 of 0"})
    write_end(run.path, 3)
    (run.path / "cancelled").touch()
    ended = conclude(run, Status("ended", "X", Outcome.CANCELLED_BY_USER)).record.exit
    assert ended and ended.reason == "cancelled"


class ReadsLogs(StandIn):
    """Takes the last word of a job's log for the number of the task that failed."""

    def failed_task(self, *logs: object) -> FailedTask:
        return FailedTask(int(str(logs[0]).split()[-1]), "gpu00", "Killed")


def test_the_scheduler_reads_the_log_of_each_attempt(run: Run) -> None:
    """By its log it names a rank that vanished; a later attempt's log says nothing of an earlier one."""
    run = dataclasses.replace(run, scheduler=ReadsLogs(FAILED))
    log = run.path / "logs/job.log"
    log.write_text("srun: error: gpu00: task 1")
    write_attempt(run.path, 0, None, None)
    write_restart(run.path, 1)
    with log.open("a") as more:
        more.write("srun: error: gpu00: task 0")
    write_attempt(run.path, 1, None, None, at=120)
    write_end(run.path, 137)
    concluded = conclude(run, FAILED)
    assert concluded.failed and concluded.failed.number == 0
    assert concluded.record.restarts[0].reason.startswith("rank 1 on gpu00 failed: no exit status")


def test_a_restart_after_a_failure_of_no_known_rank(run: Run) -> None:
    write_restart(run.path, 1, code=7)
    (restart,) = restarts.find(run)
    assert (restart.reason, restart.code) == ("the job's step failed: exit code 7", 7)


def test_events_of_the_last_attempt_and_of_the_preflight(run: Run) -> None:
    write_events(run.path, {"what": "measured", "stage": "preflight", "message": "1 GB/s"}, node=0)
    write_attempt(run.path, 0, 0, 137)
    write_attempt(run.path, 1, 0, at=120)
    assert [(event.what, event.attempt) for event in events.read_node_events(run.path)] == [
        ("measured", 0),
        ("started", 1),
        ("ended", 1),
    ]
    assert events.last_attempt([]) == 0


def test_lines_of_the_last_attempt() -> None:
    assert restarts.of_last_attempt(["a", "--- attempt 1 ---", "b", "--- attempt 2 ---", "c", ""]) == ["c", ""]
    assert restarts.of_last_attempt(["a --- attempt 1 ---"]) == ["a --- attempt 1 ---"]
    assert restarts.of_last_attempt(["a", "--- attempt 1 ---"]) == []
