from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.errors import CtrainError, DiskFullError, SchedulerError, UnansweredSubmission
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.run import directory, parent_directories, record
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.pick_up import list_runs, pick_up, refresh
from ctrain_runtime.run.submit import submission_lock, submit
from ctrain_runtime.schedulers.protocol import Outcome
from samples.plans import a_launch, a_plan, some_facts
from samples.runs import StandIn


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    (tmp_path / "in-use").mkdir()
    return a_launch(a_plan(run_directory=tmp_path / "one", facts=some_facts(lease_dir=str(tmp_path / "in-use"))))


@pytest.fixture
def scheduler(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    assert launch  # whose plan the true scheduler makes
    scheduler = StandIn()
    monkeypatch.setattr(schedulers, "get", lambda _: scheduler)
    return scheduler


@pytest.mark.usefixtures("scheduler")
def test_a_run_that_is_submitted_is_recorded(launch: Launch, tmp_path: Path) -> None:
    run = submit(launch)
    assert (run.path, run.job_id, run.job_name) == (tmp_path / "one", "7", "job 7")
    assert record.load(run.path) == run.record
    assert run.record.attempts[0].job_id == "7"
    assert Path(launch.plan.image.lease).exists()


def test_the_record_exists_before_the_job_does(
    launch: Launch, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: Any) -> str:
        assert record.load(Path(launch.plan.run_directory)).attempts == ()
        assert Path(launch.plan.image.lease).exists()
        return "8"

    monkeypatch.setattr(scheduler, "submit", check)
    assert submit(launch).job_id == "8"


def test_the_lock_is_held_by_what_submits(launch: Launch, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_: Launch, descriptors: tuple[int, ...]) -> str:
        other = os.open(Path(launch.plan.run_directory) / ".submit", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        assert len(descriptors) == 1
        return "7"

    monkeypatch.setattr(scheduler, "submit", check)
    path = submit(launch).path
    with submission_lock(path) as descriptor:  # free again
        assert not os.get_inheritable(descriptor)


def test_a_job_that_is_rejected_is_recorded_and_frees_its_image(launch: Launch, scheduler: StandIn) -> None:
    scheduler.refusals = [SchedulerError("rejected", "Ask for less")]
    with pytest.raises(SchedulerError, match="rejected"):
        submit(launch)
    written = record.load(Path(launch.plan.run_directory))
    assert written.exit == record.Exit(72, "rejected", "ctrain", Ending.NEVER_STARTED)
    assert written.end
    assert written.attempts == ()
    assert not Path(launch.plan.image.lease).exists()


def test_a_submission_without_an_answer_stays_open(launch: Launch, scheduler: StandIn) -> None:
    scheduler.refusals = [UnansweredSubmission("sbatch timed out", "Check with: squeue")]
    with pytest.raises(UnansweredSubmission):
        submit(launch)
    written = record.load(Path(launch.plan.run_directory))
    assert (written.exit, written.attempts) == (None, ())
    assert Path(launch.plan.image.lease).exists()
    scheduler.job = "8"
    assert pick_up(Path(launch.plan.run_directory)).job_id == "8"


def test_a_parent_that_is_not_writable(launch: Launch, scheduler: StandIn, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    launch = replace(launch, plan=replace(launch.plan, run_directory=f"{tmp_path}/file/one"))
    with pytest.raises(CtrainError, match=rf"cannot create the run directory {tmp_path}/file/one: Not a directory"):
        submit(launch)
    assert scheduler.calls == []


@pytest.mark.usefixtures("scheduler")
def test_a_run_is_found_from_anywhere(launch: Launch, tmp_path: Path) -> None:
    submit(launch)
    assert parent_directories.with_remembered(tmp_path / "own") == (tmp_path / "own", tmp_path)


def test_what_the_scheduler_would_never_start_leaves_no_directory(
    launch: Launch, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise SchedulerError("no such account")

    monkeypatch.setattr(scheduler, "check", refuse)
    directory.reserve(launch.plan)
    with pytest.raises(SchedulerError):
        submit(launch)
    assert not Path(launch.plan.run_directory).exists()


def test_a_disk_that_has_no_room_for_the_record_leaves_nothing(
    launch: Launch, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(record, "save", full)
    with pytest.raises(DiskFullError, match=r"Disk quota exceeded\. Choose another parent with --runs DIR"):
        submit(launch)
    assert scheduler.calls == []
    assert not Path(launch.plan.run_directory).exists()
    assert not Path(launch.plan.image.lease).exists()


def test_a_disk_that_becomes_full_then_does_not_lose_the_job(
    launch: Launch, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []

    def second_is_full(path: Path, data: Any) -> None:
        writes.append(data)
        if path.name == "record.json" and len(writes) > 3:  # plan, manifest, record
            raise OSError(errno.ENOSPC, "No space left on device")
        path.touch()

    monkeypatch.setattr(directory, "write_json", second_is_full)
    assert submit(launch).job_id == "7"
    assert scheduler.calls == ["submit"]


class Killed(BaseException):
    """What ends a submission in its midst."""


@pytest.mark.parametrize("where", ["directory.create", "record.save", "directory.write_plan"])
def test_a_submission_that_is_killed_before_its_directory_is_whole_leaves_no_run(
    launch: Launch, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def kill(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(f"ctrain_runtime.run.{where}", kill)
    with pytest.raises(Killed):
        submit(launch)
    assert list(list_runs(Path(launch.plan.run_directory).parent)) == []
    assert scheduler.calls == []


def test_a_submission_that_is_killed_before_it_asked_has_no_job(
    launch: Launch, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is certain at once: nothing is looked up, and nothing may come later."""

    def kill(*_: object) -> None:
        raise Killed

    monkeypatch.setattr("ctrain_runtime.run.submit._mark", kill)
    with pytest.raises(Killed):
        submit(launch)
    scheduler.job = "of another run"
    status, conclusion = refresh(pick_up(Path(launch.plan.run_directory)))
    assert (status.phase, status.outcome) == ("ended", Outcome.NEVER_STARTED)
    assert conclusion
    assert conclusion.record.exit
    assert conclusion.record.exit.reason == "the job was never submitted"


@pytest.mark.parametrize("where", ["directory.write_json", "submit.os.pwrite"])
def test_a_disk_that_is_full_for_the_plan_or_the_mark_leaves_nothing(
    launch: Launch, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    real = directory.write_json

    def full(path: object, *arguments: Any) -> None:
        if isinstance(path, Path) and path.name != "plan.json":
            return real(path, *arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"ctrain_runtime.run.{where}", full)
    with pytest.raises(DiskFullError, match="No space left on device"):
        submit(launch)
    assert scheduler.calls == []
    assert not Path(launch.plan.run_directory).exists()
    assert not Path(launch.plan.image.lease).exists()


def test_of_a_submission_by_an_older_ctrain_nothing_is_certain(launch: Launch, scheduler: StandIn) -> None:
    """It left the file of the lock empty."""
    scheduler.refusals = [UnansweredSubmission("killed", "")]
    with pytest.raises(UnansweredSubmission):
        submit(launch)
    path = Path(launch.plan.run_directory)
    (path / ".submit").write_bytes(b"")
    assert refresh(pick_up(path))[0].phase == "unknown"
    scheduler.job = "8"
    assert pick_up(path).job_id == "8"
