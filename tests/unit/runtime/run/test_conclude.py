from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime.errors import exit_codes
from ctrain_runtime.run import conclude as module
from ctrain_runtime.run import record, shared_files
from ctrain_runtime.run.conclude import conclude
from ctrain_runtime.run.ending import FROM_OUTSIDE, Ending
from ctrain_runtime.run.record import Exit
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import FailedTask, Outcome, OutOfMemory, Status
from ctrain_runtime.schedulers.slurm import job as slurm
from samples.plans import a_job, changed, some_facts
from samples.runs import StandIn, submitted, write_end, write_events, write_ranks, write_signal

BLAMING = [outcome for outcome in Outcome if outcome not in FROM_OUTSIDE]
FAILING = [outcome for outcome in Outcome if outcome is not Outcome.COMPLETED]
SIZE = {"nodes": 2, "ranks_per_node": 2}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "SYNC_SECONDS", 0.01)
    monkeypatch.setattr(shared_files, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(shared_files, "has_caches", lambda _: False)
    monkeypatch.setattr(module, "OUTCOME_POLL_SECONDS", 0.001)


@pytest.fixture
def scheduler() -> StandIn:
    return StandIn(Status("ended", "X", Outcome.UNKNOWN))


@pytest.fixture
def run(tmp_path: Path, scheduler: StandIn) -> Run:
    return submitted(tmp_path / "one", scheduler, **SIZE)


def end(run: Run, outcome: Optional[Outcome] = None, word: str = "X") -> Exit:
    ended = conclude(run, Status("ended", word, outcome)).record.exit
    assert ended
    return ended


def test_what_the_preflight_has_found_is_recorded(run: Run) -> None:
    named = "gpu01: its image is not that of gpu00"
    for what, message in (("measured", "2 nodes reach each other"), ("failed", named)):
        write_events(run.path, {"stage": "preflight", "what": what, "message": message}, node=0)
    (run.path / "logs/job.log").write_text(f"ctrain: preflight: {named}\nsrun: error: gpu01: task 1: Exited\n")
    write_end(run.path, 80)
    concluded = conclude(run, Status("ended", "FAILED", Outcome.FAILED))
    assert concluded.record.exit == Exit(80, f"preflight: {named}", "ctrain", Ending.REFUSED)
    assert concluded.record.preflight == ("2 nodes reach each other", named)


def test_who_ended_a_job_is_asked_until_the_scheduler_knows(run: Run, scheduler: StandIn) -> None:
    provisional = Status("ended", "exit status 271", Outcome.CANCELLED, provisional=True)
    scheduler.statuses = [provisional, provisional, Status("ended", "terminated by root", Outcome.CANCELLED_BY_ADMIN)]
    concluded = conclude(run, provisional).record
    assert concluded.exit == Exit(
        143, "cancelled by an administrator (terminated by root)", "scheduler", Ending.CANCELLED
    )


def test_a_scheduler_that_does_not_get_to_know_who_ended_a_job_is_not_waited_for(
    run: Run, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OUTCOME_TIMEOUT_SECONDS", 0.05)
    scheduler.statuses = [Status("ended", "exit status 271", Outcome.CANCELLED, provisional=True)]
    assert conclude(run, scheduler.statuses[0]).record.exit == Exit(
        143, "cancelled (exit status 271)", "scheduler", Ending.CANCELLED
    )


# What the ranks show -> how it is named, for every outcome that blames nobody from outside.
@pytest.mark.parametrize(
    ("outcome", "has_end"),
    [*((outcome, True) for outcome in BLAMING), (Outcome.FAILED, False), (Outcome.UNKNOWN, False)],
)
def test_a_failure_is_the_first_ranks(run: Run, outcome: Outcome, has_end: bool) -> None:
    write_ranks(run.path, 143, 9, 143, 143, ends=110.0)
    write_events(run.path, {"what": "ended", "rank": 1, "time": 105.0, "code": 9, "node": "gpu00"}, node=0)
    if has_end:
        write_end(run.path, 143)
    concluded = conclude(run, Status("ended", "X", outcome))
    assert concluded.record.exit == Exit(9, "rank 1 on gpu00 failed first: exit code 9", "program", Ending.FAILED)
    assert concluded.failed
    assert concluded.failed.number == 1


@pytest.mark.parametrize("outcome", sorted(FROM_OUTSIDE.keys() - {Outcome.OUT_OF_MEMORY}))
@pytest.mark.parametrize("code", [None, 143])
@pytest.mark.parametrize("codes", [(), (None, None, None, None), (143, 137, 143, 1)])
def test_what_ended_the_job_from_outside_is_named_and_no_rank_is_blamed(
    run: Run, outcome: Outcome, code: Optional[int], codes: tuple[Optional[int], ...]
) -> None:
    write_ranks(run.path, *codes)
    if code is not None:
        write_end(run.path, code)
    concluded = conclude(run, Status("ended", "WORD", outcome))
    assert concluded.record.exit == Exit(143, f"{outcome.value} (WORD)", "scheduler", FROM_OUTSIDE[outcome])
    assert concluded.failed is None
    assert concluded.record.attempts[-1].outcome == outcome.value
    assert concluded.record.attempts[-1].word == "WORD"


@pytest.mark.parametrize(
    ("codes", "lost"),
    [
        ((1, 143, None, None), ": no exit status from gpu01"),
        ((1, 1, None, 1, *[None] * 4), ": no exit status from gpu01, gpu02, gpu03"),
        ((1, 1, *[None] * 8), ": no exit status from gpu01, gpu02, gpu03, ..."),
        ((1, None), ": no exit status from gpu00"),  # of its only node
        ((None, None, None, None), ""),
    ],
)
def test_nodes_that_failed_are_named(run: Run, codes: tuple[Optional[int], ...], lost: str) -> None:
    write_ranks(run.path, *codes)
    write_end(run.path, 1)
    concluded = conclude(run, Status("ended", "NODE_FAIL", Outcome.NODE_FAILURE))
    assert concluded.record.exit == Exit(1, f"node failure (NODE_FAIL){lost}", "scheduler", Ending.NODE_FAILURE)
    assert concluded.failed is None


@pytest.mark.parametrize("codes", [(), (0, 0), (0, 0, 0, 0), (None, 0, 0, 0)])
def test_completed_without_visible_events_is_success(run: Run, codes: tuple[Optional[int], ...]) -> None:
    """Attribute caches of NFS hide the last files of an ended job for 30 s and longer."""
    write_ranks(run.path, *codes)
    concluded = conclude(run, Status("ended", "COMPLETED", Outcome.COMPLETED))
    assert concluded.record.exit == Exit(0, "completed", "program", Ending.COMPLETED)
    assert concluded.failed is None


def test_success_by_the_jobs_own_word_asks_no_scheduler(run: Run, scheduler: StandIn) -> None:
    write_ranks(run.path, 0, 0, 0, 0)
    write_end(run.path, 0)
    assert end(run) == Exit(0, "completed", "program", Ending.COMPLETED)
    assert scheduler.calls == []
    assert record.load(run.path).attempts[-1].outcome == "completed"


def test_the_end_of_the_job_outweighs_a_cancellation_that_came_too_late(run: Run) -> None:
    write_ranks(run.path, 0, 0, 0, 0)
    write_end(run.path, 0)
    (run.path / "cancelled").touch()
    assert end(run, Outcome.COMPLETED) == Exit(0, "completed", "program", Ending.COMPLETED)


# A program that saves and exits 0 when it is told to end: outcome of its job -> how the run ended.
SAVED = [
    (Outcome.CANCELLED, Exit(143, "cancelled (X)", "scheduler", Ending.CANCELLED)),
    (Outcome.CANCELLED_BY_USER, Exit(143, "cancelled by its user (X)", "scheduler", Ending.CANCELLED)),
    (Outcome.CANCELLED_BY_ADMIN, Exit(143, "cancelled by an administrator (X)", "scheduler", Ending.CANCELLED)),
    (Outcome.TIMEOUT, Exit(143, "time limit reached (X)", "scheduler", Ending.TIME_LIMIT)),
    (Outcome.PREEMPTED, Exit(143, "preempted (X)", "scheduler", Ending.PREEMPTED)),
    (Outcome.NODE_FAILURE, Exit(143, "node failure (X)", "scheduler", Ending.NODE_FAILURE)),
    (
        Outcome.COMPLETED,
        Exit(
            143,
            "ended with exit code 0 after SIGTERM: probably saved, and left before it was done",
            "program",
            Ending.SAVED_AND_LEFT,
        ),
    ),
    (
        Outcome.UNKNOWN,
        Exit(
            143,
            "ended from outside by SIGTERM; the scheduler does not name the sender (X)",
            "scheduler",
            Ending.INTERRUPTED,
        ),
    ),
]


@pytest.mark.parametrize(("outcome", "expected"), SAVED)
@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (2,)])
def test_a_program_that_was_interrupted_saved_and_exited_with_0_is_not_completed(
    run: Run, scheduler: StandIn, outcome: Outcome, expected: Exit, ranks: tuple[int, ...]
) -> None:
    write_ranks(run.path, None, None, None, None)
    write_signal(run.path, *ranks)
    write_ranks(run.path, 0, 0, 0, 0)
    write_end(run.path, 0)
    scheduler.statuses = [Status("ended", "X", outcome)]
    concluded = conclude(run, Status("ended"))  # as from the event of job.sh: the scheduler is asked
    assert (concluded.record.exit, concluded.failed) == (expected, None)


def test_the_accounting_may_lag_behind_the_end_of_an_interrupted_job(run: Run, scheduler: StandIn) -> None:
    write_ranks(run.path, 0, 0, 0, 0)
    write_signal(run.path, 0)
    write_end(run.path, 0)
    provisional = Status("ended", "X", Outcome.COMPLETED, provisional=True)
    scheduler.statuses = [Status("running"), provisional, Status("ended", "TIMEOUT", Outcome.TIMEOUT)]
    assert end(run) == Exit(143, "time limit reached (TIMEOUT)", "scheduler", Ending.TIME_LIMIT)


def test_an_interrupted_run_that_ctrain_was_asked_to_cancel_is_cancelled(run: Run, scheduler: StandIn) -> None:
    write_ranks(run.path, 0, 0, 0, 0)
    write_signal(run.path, 0, 1, 2, 3)
    write_end(run.path, 0)
    (run.path / "cancelled").touch()
    scheduler.statuses = [Status("ended", "CANCELLED", Outcome.CANCELLED_BY_USER)]
    assert end(run) == Exit(130, "cancelled", "user", Ending.CANCELLED)


def test_a_signal_that_comes_when_all_ranks_have_ended_interrupts_nothing(run: Run, scheduler: StandIn) -> None:
    """job.sh may get it while srun still collects the ends of its tasks."""
    write_ranks(run.path, 0, 0, 0, 0)
    write_signal(run.path)
    write_end(run.path, 0)
    (run.path / "cancelled").touch()
    assert end(run) == Exit(0, "completed", "program", Ending.COMPLETED)
    assert scheduler.calls == []


@pytest.mark.parametrize(("at", "ending"), [(105.0, "saved and left"), (100.5, "saved and left"), (90.0, "completed")])
def test_a_warning_after_which_a_program_exits_with_0(run: Run, scheduler: StandIn, at: float, ending: str) -> None:
    """At 90 s its ranks had not started."""
    write_ranks(run.path, 0, 0, 0, 0)
    write_signal(run.path, 0, 1, 2, 3, name="USR1", time=at)
    write_end(run.path, 0)
    scheduler.statuses = [Status("ended", "COMPLETED", Outcome.COMPLETED)]
    ended = end(run)
    assert (ended.ending.value, ended.code) == (ending, 0 if ending == "completed" else 143)


def test_a_program_that_goes_on_for_long_after_a_warning_has_not_left_because_of_it(run: Run) -> None:
    write_ranks(run.path, 0, 0, 0, 0, ends=2000.0)
    write_signal(run.path, 0, 1, 2, 3, name="USR1")
    write_end(run.path, 0)
    assert end(run) == Exit(0, "completed", "program", Ending.COMPLETED)


@pytest.mark.parametrize("codes", [(85, 85, 85, 85), (85, 143, 1, 85)])
@pytest.mark.parametrize("signal", ["", "USR1", "TERM"])
def test_a_program_says_by_its_code_that_it_has_saved_and_left(
    run: Run, codes: tuple[Optional[int], ...], signal: str
) -> None:
    write_ranks(run.path, *codes)
    if signal:
        write_signal(run.path, 0, 1, 2, 3, name=signal)
    write_end(run.path, 85)
    concluded = conclude(run, Status("ended", "FAILED", Outcome.FAILED))
    after = f" after SIG{signal}" if signal else ""
    reason = f"rank 0 on gpu00 saved, and left before it was done: exit code 85{after}"
    assert concluded.record.exit == Exit(85, reason, "program", Ending.SAVED_AND_LEFT)
    assert (concluded.failed, concluded.others) == (None, ())


def stop_others(run: Run) -> None:
    """What the launcher does, half a second after the end of rank 0."""
    for rank in (1, 2, 3):
        write_events(run.path, {"what": "signalled", "time": 110.5, "rank": rank, "signal": "TERM"}, node=rank // 2)


def test_the_others_of_a_rank_that_has_left_are_signalled_by_their_launcher(run: Run) -> None:
    write_ranks(run.path, 85, 143, 137, 143)
    stop_others(run)
    write_end(run.path, 1)  # of torchrun
    reason = "rank 0 on gpu00 saved, and left before it was done: exit code 85"
    lost = "; 1 of 4 ranks recorded no end after SIGTERM, or were killed: a checkpoint may be incomplete"
    assert end(run, Outcome.FAILED) == Exit(85, reason + lost, "program", Ending.SAVED_AND_LEFT)


@pytest.mark.parametrize(("outcome", "ending"), [(o, e) for o, e in FROM_OUTSIDE.items() if e.value != "out of memory"])
def test_what_ended_a_job_counts_before_what_its_program_made_of_it(run: Run, outcome: Outcome, ending: Ending) -> None:
    write_ranks(run.path, 85, 85, 85, 85)
    write_signal(run.path, 0, 1, 2, 3)
    write_end(run.path, 85)
    assert end(run, outcome).ending is ending


def test_a_rank_that_failed_before_the_others_have_saved_has_failed(run: Run) -> None:
    write_ranks(run.path, 3, 85, 85, 85)
    stop_others(run)
    write_end(run.path, 3)
    assert end(run, Outcome.FAILED).ending is Ending.FAILED


@pytest.mark.parametrize("codes", [(143, 143, 143, 143), (137, None, 143, 1), (None, None, None, None)])
@pytest.mark.parametrize("code", [143, 137, None])
def test_an_end_from_outside_that_the_scheduler_has_forgotten_blames_no_rank(
    run: Run, codes: tuple[Optional[int], ...], code: Optional[int]
) -> None:
    """As on PBS without job history, and after qdel -W force."""
    write_ranks(run.path, *codes)
    write_signal(run.path, 0)
    if code is not None:
        write_end(run.path, code)
    concluded = conclude(run, Status("ended", "", Outcome.UNKNOWN))
    reason = "ended from outside by SIGTERM; the scheduler does not name the sender"
    if codes[0] != 143:
        reason += "; 1 of 4 ranks recorded no end after SIGTERM, or were killed: a checkpoint may be incomplete"
    assert concluded.record.exit == Exit(code or 143, reason, "scheduler", Ending.INTERRUPTED)
    assert concluded.failed is None


def test_job_sh_was_killed_and_nobody_knows_why(run: Run) -> None:
    write_ranks(run.path, None, 143, None, None)
    concluded = conclude(run, Status("ended", "", Outcome.UNKNOWN))
    reason = "job.sh was killed, and no rank had failed before: why is unknown"
    assert concluded.record.exit == Exit(143, reason, "scheduler", Ending.UNKNOWN)
    assert concluded.failed is None


def test_a_rank_that_failed_well_before_the_signal_is_named(run: Run) -> None:
    write_ranks(run.path, 9, 143, 143, 143)
    write_signal(run.path, 1, 2, 3, time=118.0)
    write_end(run.path, 143)
    assert end(run, Outcome.UNKNOWN) == Exit(9, "rank 0 on gpu00 failed first: exit code 9", "program", Ending.FAILED)


MORE = "Request more with --mem, or use fewer ranks per node"


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.UNKNOWN])
def test_a_rank_that_ran_out_of_memory_is_named_with_the_limit_and_what_raises_it(run: Run, outcome: Outcome) -> None:
    """Another rank reports the loss of its connection first."""
    write_ranks(run.path, 1, 143, 143, ends=109.0)
    write_events(run.path, {"what": "started", "time": 100.0, "rank": 3, "node": "gpu01"}, node=1)
    killed = {"what": "ended", "time": 109.5, "rank": 3, "node": "gpu01", "code": 137, "memory_limit": 8_000_000_000}
    write_events(run.path, killed, node=1)
    write_end(run.path, 1)
    concluded = conclude(run, Status("ended", "X", outcome))
    reason = f"rank 3 on gpu01 ran out of memory: limit 8.0 GB per node. {MORE}"
    assert concluded.record.exit == Exit(137, reason, "program", Ending.OUT_OF_MEMORY)
    assert concluded.failed and concluded.failed.number == 3


def test_a_task_that_the_log_reports_is_the_rank_that_ran_out_of_memory(run: Run, scheduler: StandIn) -> None:
    """Its wrapper was killed with it, and could record nothing."""
    write_ranks(run.path, 143, 143, None, 143)
    write_end(run.path, 137)
    scheduler.starved = OutOfMemory(2, "gpu01", 1 << 30)
    reason = f"rank 2 on gpu01 ran out of memory: limit 1.1 GB per node. {MORE}"
    assert end(run, Outcome.FAILED) == Exit(137, reason, "program", Ending.OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("outcome", "logged", "who"),
    [
        (Outcome.OUT_OF_MEMORY, None, "the job"),
        (Outcome.FAILED, OutOfMemory(), "the job"),
        (Outcome.FAILED, OutOfMemory(None, "gpu01"), "the job on gpu01"),
    ],
)
def test_want_of_memory_that_no_rank_could_record(
    run: Run, scheduler: StandIn, outcome: Outcome, logged: Optional[OutOfMemory], who: str
) -> None:
    write_ranks(run.path, None, 143, 143, 143)
    write_end(run.path, 1)
    scheduler.starved = logged
    concluded = conclude(run, Status("ended", "X", outcome))
    assert concluded.record.exit == Exit(1, f"{who} ran out of memory. {MORE}", "scheduler", Ending.OUT_OF_MEMORY)
    assert concluded.failed is None


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED_BY_USER, Outcome.TIMEOUT])
def test_a_job_that_was_ended_from_outside_has_not_run_out_of_memory(
    run: Run, scheduler: StandIn, outcome: Outcome
) -> None:
    write_ranks(run.path, 143, 143, 143, 137)
    write_end(run.path, 143)
    scheduler.starved = OutOfMemory()
    assert end(run, outcome).ending is not Ending.OUT_OF_MEMORY


def test_success_of_too_few_ranks_is_none(run: Run) -> None:
    write_ranks(run.path, 0, 0, 0)
    write_end(run.path, 0)
    assert end(run, Outcome.COMPLETED) == Exit(1, "only 3 of 4 ranks ever started", "ctrain", Ending.REFUSED)


@pytest.mark.parametrize("outcome", FAILING)
@pytest.mark.parametrize("codes", [(), (143, 9), (None, None)])
def test_who_asks_ctrain_to_cancel_reads_so(run: Run, outcome: Outcome, codes: tuple[Optional[int], ...]) -> None:
    write_ranks(run.path, *codes)
    (run.path / "cancelled").touch()
    assert end(run, outcome) == Exit(130, "cancelled", "user", Ending.CANCELLED)


def test_a_rank_that_left_before_is_named_beside_the_failure(run: Run) -> None:
    write_ranks(run.path, 0, 0, 0, 1)
    write_end(run.path, 1)
    assert end(run, Outcome.FAILED).reason == (
        "rank 3 on gpu01 failed first: exit code 1; rank 0 on gpu00 had ended before with exit code 0"
    )


def test_the_job_log_names_a_rank_whose_wrapper_was_killed(tmp_path: Path) -> None:
    """It could write nothing itself; every other rank looks just the same."""
    scheduler = StandIn(failed=FailedTask(2, "gpu01", "Killed"))
    run = submitted(tmp_path / "one", scheduler, **SIZE)
    write_ranks(run.path, None, None, None, None)
    write_end(run.path, 137)
    assert end(run, Outcome.FAILED) == Exit(
        137, "rank 2 on gpu01 failed first: Killed (from the job's log)", "program", Ending.FAILED
    )


def test_a_failed_task_is_no_rank_where_a_task_has_several(tmp_path: Path) -> None:
    scheduler = StandIn(failed=FailedTask(1, "gpu01", "Killed"))
    run = submitted(tmp_path / "one", scheduler, job=a_job(launcher="torchrun"), **SIZE)
    assert (run.plan.tasks, run.plan.ranks_per_task) == (2, 2)
    write_ranks(run.path, None, None, None, None)
    write_end(run.path, 137)
    assert end(run, Outcome.FAILED).reason.startswith("rank 0 on gpu00 failed first: no exit status")


@pytest.mark.parametrize("code", [code for code, _ in exit_codes() if code < 80])
def test_a_programs_code_that_is_also_ctrains_is_the_programs(run: Run, code: int) -> None:
    write_ranks(run.path, code, 143, 143, 143)
    write_end(run.path, code)
    assert end(run, Outcome.FAILED) == Exit(
        code, f"rank 0 on gpu00 failed first: exit code {code}", "program", Ending.FAILED
    )


@pytest.mark.parametrize("code", [72, 73, 127])
def test_ctrains_refusals_are_ctrains(run: Run, code: int) -> None:
    write_events(
        run.path, {"what": "refused", "rank": 0, "code": code, "message": "why", "time": 1.0, "node": "n"}, node=0
    )
    write_end(run.path, code)
    assert end(run, Outcome.FAILED) == Exit(code, "rank 0 on n: why", "ctrain", Ending.REFUSED)


# As in public logs of jobs by --mpi=pmix_v4
AFTERMATH = """\
srun: Job step aborted: Waiting up to 62 seconds for job step to finish.
slurmstepd: error: *** STEP 20221816.1 ON gpu00 CANCELLED AT 2026-08-21T01:47:17 ***
slurmstepd: error:  mpi/pmix_v4: _errhandler: gpu00 [0]: pmixp_client_v2.c:211: Error handler invoked: status = -61, \
source = [slurm.pmix.20221816.1:1]
srun: Terminating StepId=20221816.1
"""


def test_of_the_job_log_the_cause_is_told_not_its_consequence(
    run: Run, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "is_aftermath", slurm.is_aftermath)
    log = (
        f"slurmstepd: error: task_prolog: no space\n{AFTERMATH}srun: error: gpu00: tasks 0-1: Exited with exit code 7\n"
    )
    (run.path / "logs/job.log").write_text(log)
    write_end(run.path, 7)
    cause = "slurmstepd: error: task_prolog: no space"
    assert end(run, Outcome.FAILED) == Exit(7, cause, "scheduler", Ending.FAILED)
    (run.path / "logs/job.log").write_text(log.partition("\n")[2])
    assert end(run, Outcome.FAILED).reason == "srun: error: gpu00: tasks 0-1: Exited with exit code 7"


def test_what_became_of_the_others_is_counted(run: Run) -> None:
    write_ranks(run.path, 0, 9, 143)
    write_end(run.path, 9)
    concluded = conclude(run, Status("ended", "X", Outcome.FAILED))
    assert concluded.others == ((1, "stopped"), (1, "ended with exit code 0"), (1, "never started"))
    assert conclude(run, Status("ended", "X", Outcome.TIMEOUT)).others == ()  # no rank is blamed


def test_no_rank_ever_started_and_the_job_log_says_why(run: Run) -> None:
    (run.path / "logs/job.log").write_text("banner\nctrain: cannot create a home in /tmp on gpu01\nsrun: error: 1\n\n")
    write_end(run.path, 73)
    assert end(run, Outcome.FAILED) == Exit(73, "cannot create a home in /tmp on gpu01", "ctrain", Ending.REFUSED)


def test_a_job_that_never_started(run: Run) -> None:
    assert end(run, Outcome.NEVER_STARTED) == Exit(1, "the job never started", "scheduler", Ending.NEVER_STARTED)


def test_a_run_that_was_never_submitted(tmp_path: Path) -> None:
    begun = submitted(tmp_path / "one", StandIn(), **SIZE)
    run = dataclasses.replace(begun, record=dataclasses.replace(begun.record, attempts=()))
    assert end(run, Outcome.NEVER_STARTED) == Exit(1, "the job was never submitted", "scheduler", Ending.NEVER_STARTED)


def test_a_directory_that_the_nodes_do_not_see(run: Run) -> None:
    ended = end(run, Outcome.FAILED)
    assert ended.reason == (
        f"the job wrote nothing to {run.path}: its nodes may not see that directory."
        " Choose one that all nodes share: --runs DIR"
    )


def test_a_full_disk_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 0})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    assert end(run, Outcome.FAILED) == Exit(1, f"disk full: {run.path}", "ctrain", Ending.FAILED)


def test_a_full_disk_when_the_end_is_written_keeps_the_old_record(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    write_end(run.path, 3)
    monkeypatch.setattr(record, "save", full)
    assert conclude(run, Status("ended")).record.exit
    assert record.load(run.path).exit is None  # the next to pick it up tries again


def test_times_are_those_of_the_job(run: Run) -> None:
    write_ranks(run.path, 0, 0, 0, 0)
    write_end(run.path, 0)
    written = conclude(run, Status("ended")).record
    assert (written.start, written.end) == ("1970-01-01T00:01:39+00:00", "1970-01-01T00:02:00+00:00")
    assert written.nodes == ("gpu00", "gpu01")
    assert record.load(run.path) == written


def test_the_end_of_a_run_ends_its_lease(tmp_path: Path) -> None:
    (tmp_path / "in-use").mkdir()
    run = submitted(tmp_path / "one", StandIn(), facts=some_facts(lease_dir=str(tmp_path / "in-use")), **SIZE)
    Path(run.plan.image.lease).touch()
    write_end(run.path, 3)
    end(run, Outcome.FAILED)
    assert list((tmp_path / "in-use").iterdir()) == []


def test_a_run_of_a_thousand_nodes(tmp_path: Path, scheduler: StandIn) -> None:
    """Files grow with nodes, not with ranks."""
    run = submitted(tmp_path / "one", scheduler, **SIZE)
    run = dataclasses.replace(run, plan=changed(run.plan, nodes=1000, ranks_per_node=8))
    for node in range(1000):
        lines = []
        for rank in range(8 * node, 8 * node + 8):
            code = 9 if rank == 4321 else 143
            who: dict[str, Any] = {"stage": "run", "node": f"n{node}", "rank": rank}
            lines.append(json.dumps({"time": 100.0, "what": "started", **who}))
            lines.append(json.dumps({"time": 200.0 - (code == 9), "what": "ended", "code": code, **who}))
            with (run.path / module.run_files.rank_log(rank, node, run.plan.size.world_size)).open("a") as log:
                log.write(f"[{rank}] hello\n")
        (run.path / f"nodes/{node}.jsonl").write_text("\n".join(lines) + "\n")
    write_end(run.path, 9)
    assert sum(len(files) for _, _, files in os.walk(run.path)) < 2100
    concluded = conclude(run, Status("ended", "X", Outcome.FAILED))
    assert concluded.record.exit == Exit(9, "rank 4321 on n540 failed first: exit code 9", "program", Ending.FAILED)
    assert len(concluded.record.nodes) == 1000
    assert (run.path / "record.json").stat().st_size < 50_000


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert not [path for path in tmp_path.rglob(".*") if path.name not in (".submit",)]  # no temporary file
