from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.errors import CtrainError, DataError, SchedulerError
from ctrain_runtime.run import pick_up as module
from ctrain_runtime.run import record
from ctrain_runtime.run.conclude import Conclusion
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.pick_up import (
    current_status,
    find_run,
    list_parents,
    list_runs,
    pick_up,
    refresh,
    require_known,
)
from ctrain_runtime.run.record import Attempt
from ctrain_runtime.run.submit import Run, submission_lock
from ctrain_runtime.schedulers import process
from ctrain_runtime.schedulers.protocol import Outcome, Status
from samples.plans import a_launch, a_plan, some_facts
from samples.programs import give_away
from samples.runs import StandIn, created, submitted, write_end, write_events, write_ranks

NOBODY = 65534
SIZE = {"nodes": 2, "ranks_per_node": 2}


@pytest.fixture
def scheduler() -> StandIn:
    return StandIn()


@pytest.fixture
def run(tmp_path: Path, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "in-use").mkdir()
    run = submitted(tmp_path / "one", scheduler, facts=some_facts(lease_dir=str(tmp_path / "in-use")), **SIZE)
    Path(run.plan.image.lease).touch()
    monkeypatch.setattr(schedulers, "get", lambda _: scheduler)
    return run


@pytest.fixture
def lost(run: Run) -> Run:
    """A run whose ctrain was killed before it wrote the job's id down."""
    record.save(dataclasses.replace(run.record, attempts=()))
    return run


def make_old(run: Run) -> None:
    """Make a run without a job one that was created an hour ago."""
    record.save(dataclasses.replace(run.record, attempts=(), created=record.iso(time.time() - 3600)))


def test_the_directory_holds_all_of_a_run(run: Run) -> None:
    assert pick_up(run.path) == run
    moved = str(run.path.parent / "other")
    with pytest.raises(DataError, match="other is not a run directory"):
        pick_up(Path(moved))


def test_the_jobs_events_name_it_when_the_record_does_not(lost: Run, scheduler: StandIn) -> None:
    write_events(lost.path, {"what": "started", "stage": "before", "job": "41"})
    scheduler.job = "not asked"
    assert pick_up(lost.path).job_id == "41"
    assert record.load(lost.path).attempts[-1].job_id == "41"


def test_the_scheduler_finds_a_job_that_waits(lost: Run, scheduler: StandIn) -> None:
    scheduler.job = "42"
    assert pick_up(lost.path).job_name == "job 42"
    assert pick_up(lost.path).job_id == "42"


def test_a_run_whose_job_is_not_known_yet_stays_open(lost: Run, scheduler: StandIn) -> None:
    """A scheduler that was restarted, or is busy, may take a job minutes after it was submitted."""
    status, conclusion = refresh(pick_up(lost.path))
    assert (status.phase, conclusion) == ("unknown", None)
    certain = "10 minutes after the submission that is certain"
    assert status.note == f"the scheduler knows no job of this run; {certain}. Retry later"
    with pytest.raises(SchedulerError, match="the scheduler knows no job of this run"):
        require_known(status)
    assert record.load(lost.path).exit is None
    assert Path(lost.plan.image.lease).exists()
    scheduler.job = "42"
    assert refresh(pick_up(lost.path)) == (Status("running", "R"), None)


def test_a_scheduler_that_does_not_answer_concludes_nothing(
    lost: Run, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SchedulerError("cannot look up the job of run one", "Check with: squeue")

    make_old(lost)
    monkeypatch.setattr(scheduler, "find", refuse)
    status, conclusion = refresh(pick_up(lost.path))
    assert (status, conclusion) == (
        Status("unknown", note="cannot look up the job of run one. Check with: squeue"),
        None,
    )
    assert Path(lost.plan.image.lease).exists()


def test_what_another_cluster_owns_is_not_concluded(run: Run, scheduler: StandIn) -> None:
    """Not even if it has failed: only its own cluster knows why."""
    scheduler.statuses = [Status("unknown", note="its job belongs to cluster other")]
    for _ in range(2):
        assert refresh(pick_up(run.path)) == (scheduler.statuses[0], None)
        assert record.load(run.path).exit is None
        assert Path(run.plan.image.lease).exists()
        write_end(run.path, 143)
    assert "cancel" not in scheduler.calls


def test_the_record_names_the_cluster(lost: Run, scheduler: StandIn) -> None:
    plan = json.loads((lost.path / "plan.json").read_text())
    plan["plan"]["placement"]["cluster"] = "neuron"
    (lost.path / "plan.json").write_text(json.dumps(plan))
    scheduler.job = "42"
    assert pick_up(lost.path).record.attempts[-1].cluster == "neuron"


def test_a_run_without_a_job_was_never_submitted(lost: Run) -> None:
    make_old(lost)
    status, conclusion = refresh(pick_up(lost.path))
    assert status == Status("ended", outcome=Outcome.NEVER_STARTED)
    assert conclusion and conclusion.record.exit
    assert conclusion.record.exit.reason == "the job was never submitted"
    assert not Path(lost.plan.image.lease).exists()


def test_a_submission_that_is_under_way_is_waited_for(lost: Run, scheduler: StandIn) -> None:
    done = []
    with submission_lock(lost.path):
        thread = threading.Thread(target=lambda: done.append(pick_up(lost.path)))
        thread.start()
        thread.join(0.2)
        assert not done
        scheduler.job = "43"
    thread.join(60)
    assert done[0].job_id == "43"


def test_a_run_that_is_over_is_not_asked_about(run: Run, scheduler: StandIn) -> None:
    over = dataclasses.replace(
        run, record=dataclasses.replace(run.record, exit=record.Exit(0, "completed", "program", Ending.COMPLETED))
    )
    assert refresh(over) == (Status("ended"), Conclusion(over.record))
    assert scheduler.calls == []


def test_a_run_that_goes_on_is_left_alone(run: Run) -> None:
    assert refresh(run) == (Status("running", "R"), None)
    assert record.load(run.path).exit is None
    assert Path(run.plan.image.lease).exists()


def test_a_run_whose_job_has_ended_is_concluded(run: Run, scheduler: StandIn) -> None:
    write_ranks(run.path, 0, 0, 0, 0)
    write_end(run.path, 0)
    assert current_status(run) == Status("ended")
    status, concluded = refresh(run)
    assert status.phase == "ended" and concluded
    assert concluded.record == record.load(run.path)
    assert concluded.record.exit == record.Exit(0, "completed", "program", Ending.COMPLETED)
    assert scheduler.calls == []
    assert not Path(run.plan.image.lease).exists()


def test_a_directory_that_cannot_be_locked(lost: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "submission_lock", refuse)
    with pytest.raises(CtrainError, match=f"cannot read {lost.path}: Permission denied"):
        pick_up(lost.path)


def make_run(path: Path, age: float = 0) -> Path:
    path.mkdir(parents=True)
    (path / "plan.json").write_text("{}")
    time = 1_700_000_000 - age
    os.utime(path / "plan.json", (time, time))
    return path


def test_runs_newest_first(tmp_path: Path) -> None:
    assert list(list_runs(tmp_path / "nowhere")) == []
    old, new = make_run(tmp_path / "runs/a", 100), make_run(tmp_path / "runs/b")
    (tmp_path / "runs/no-run").mkdir()
    (tmp_path / "runs/file").touch()
    assert list(list_runs(tmp_path / "runs")) == [new, old]
    assert find_run("last", tmp_path / "runs") == new
    with pytest.raises(DataError, match=r"cannot read .*file: Not a directory"):
        list(list_runs(tmp_path / "runs/file"))


def test_a_run_by_name_or_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "runs/resnet50-1121")
    monkeypatch.chdir(tmp_path)
    assert find_run("resnet50-1121", Path("runs")) == run
    for reference in ("runs/resnet50-1121", str(run), "./runs/resnet50-1121/"):
        assert find_run(reference, tmp_path / "elsewhere") == run
    monkeypatch.chdir(tmp_path / "runs")
    assert find_run("resnet50-1121", tmp_path / "elsewhere") == run
    monkeypatch.chdir(run)
    assert find_run(".", tmp_path / "elsewhere") == run


def test_runs_of_several_parent_directories(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a/one", 100), make_run(tmp_path / "b/two")
    parents = (tmp_path / "a", tmp_path / "nowhere", tmp_path / "b")
    assert list(list_runs(*parents)) == [b, a]
    assert [find_run(reference, *parents) for reference in ("one", "two", "last")] == [a, b, b]
    with pytest.raises(
        DataError, match=rf"^run 'oen' not found in {tmp_path}/a and 2 other directories of runs. Did you mean 'one'"
    ):
        find_run("oen", *parents)


def test_a_name_of_several_runs_is_none(tmp_path: Path) -> None:
    """What is to be cancelled must be certain."""
    make_run(tmp_path / "a/one")
    make_run(tmp_path / "b/one")
    with pytest.raises(DataError, match=rf"^run 'one' is in {tmp_path}/a, {tmp_path}/b. Name one by its path"):
        find_run("one", tmp_path / "a", tmp_path / "b")
    assert find_run(f"{tmp_path}/b/one", tmp_path / "a", tmp_path / "b") == tmp_path / "b/one"


def test_runs_that_are_not_there_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "resnet50-1121")
    with pytest.raises(DataError, match=r"^run 'resnet50-1122' not found in .*\. Did you mean 'resnet50-1121'\?$"):
        find_run("resnet50-1122", tmp_path)
    with pytest.raises(DataError, match=r"^run 'x' not found in .*\. List runs with: ctrain runs$"):
        find_run("x", tmp_path)
    with pytest.raises(DataError, match=r"^no runs in .*/nowhere\. Name the parent directory of runs with --runs DIR$"):
        find_run("last", tmp_path / "nowhere")


def test_the_run_of_a_job_by_its_number(tmp_path: Path) -> None:
    """It is what ctrain prints: job 41873."""
    jobs = {"one": ("41873", "job 41873"), "two": ("41874", "job 41874"), "broken": ("9", "job 9")}
    jobs["three"] = ("host:41874:0", "process 41874")
    for name, (number, shown) in jobs.items():
        plan = a_plan(run_directory=tmp_path / name)
        created(a_launch(plan))
        record.save(dataclasses.replace(record.begin(plan), attempts=(Attempt(number, shown, "2026-11-22T00:00:00"),)))
    (tmp_path / "broken/record.json").write_text("{")
    assert find_run("41873", tmp_path) == tmp_path / "one"
    with pytest.raises(DataError, match=r"^job 41874 is of several runs: (two, three|three, two). Name one of them"):
        find_run("41874", tmp_path)
    for shown in ("job 41873", "process 41874", "host:41874:0"):
        assert find_run(shown, tmp_path).name == ("one" if "73" in shown else "three")
    with pytest.raises(DataError, match="run '9' not found"):
        find_run("9", tmp_path)


def test_plan_and_record_are_plain_json(run: Run) -> None:
    for name in ("plan.json", "record.json"):
        assert isinstance(json.loads((run.path / name).read_text()), dict)


def test_a_run_of_another_user_is_neither_listed_nor_touched(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files name a lease to remove, a record to write and a job to cancel: anything could be in them."""
    write_end(run.path, 0)
    monkeypatch.setattr(os, "geteuid", lambda: run.path.stat().st_uid + 1)
    assert list(list_runs(run.path.parent)) == []
    with pytest.raises(DataError, match=rf"^run {run.path} belongs to another user\. List your runs with: ctrain runs"):
        pick_up(run.path)
    assert Path(run.plan.image.lease).exists()
    assert record.load(run.path).exit is None


def test_a_directory_that_may_not_be_entered_hides_no_others() -> None:
    """In a parent that users share, the runs of others may be private."""
    user = os.geteuid() or NOBODY  # root may enter everything
    with tempfile.TemporaryDirectory() as name:
        parent = Path(name)
        mine = make_run(parent / "mine")
        make_run(parent / "private").chmod(0)
        for path in (parent, mine):
            path.chmod(0o755)
            give_away(path, user)
        before = os.geteuid()
        os.seteuid(user)
        try:
            assert list(list_runs(parent)) == [mine]
        finally:
            os.seteuid(before)


def test_an_open_run_that_was_moved_or_copied_is_refused(run: Run) -> None:
    """Its scripts still write to the old directory: there is nothing here to watch or to conclude."""
    copy = run.path.with_name("copy")
    shutil.copytree(run.path, copy)
    with pytest.raises(DataError, match=rf"^run directory {copy} was moved or copied from {run.path}\. Move it back"):
        pick_up(copy)
    run.path.rename(run.path.with_name("moved"))
    with pytest.raises(DataError, match="was moved or copied"):
        pick_up(run.path.with_name("moved"))


def test_a_run_that_has_ended_can_be_shown_wherever_it_is(run: Run) -> None:
    over = dataclasses.replace(run.record, exit=record.Exit(3, "rank 0 failed", "program", Ending.FAILED))
    record.save(over)
    archived = run.path.rename(run.path.with_name("archived"))
    assert refresh(pick_up(archived)) == (Status("ended"), Conclusion(over))


def test_a_link_to_a_run_is_the_run(run: Run) -> None:
    link = run.path.with_name("link")
    link.symlink_to(run.path)
    assert pick_up(link) == run


@pytest.mark.parametrize("name", ["plan.json", "record.json"])
@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"plan": 1}', "\x00", '{"schema": 2, "attempts": [{}]}'])
def test_a_damaged_file_is_an_error_that_names_it(run: Run, name: str, text: str) -> None:
    (run.path / name).write_text(text)
    with pytest.raises(CtrainError, match=name):
        pick_up(run.path)


def test_a_damaged_job_id_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real scheduler of the plan
    attempt = dataclasses.replace(run.record.attempts[0], job_id="seven")
    record.save(dataclasses.replace(run.record, attempts=(attempt,)))
    with pytest.raises(CtrainError, match="invalid id of a process: 'seven'"):
        process.status(pick_up(run.path).job_id)


def test_many_parent_directories_are_counted() -> None:
    assert list_parents([Path("/a")]) == "/a"
    assert list_parents([Path("/a"), Path("/b")]) == "/a, /b"
    assert list_parents([Path("/a"), Path("/b"), Path("/c")]) == "/a and 2 other directories of runs"
