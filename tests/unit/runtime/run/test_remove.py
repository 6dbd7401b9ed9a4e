from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.errors import CtrainError, DataError
from ctrain_runtime.run import record
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.record import Exit
from ctrain_runtime.run.remove import check, remove
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Status
from samples.runs import StandIn, submitted

DONE = Exit(0, "completed", "program", Ending.COMPLETED)


@pytest.fixture
def scheduler() -> StandIn:
    return StandIn()


@pytest.fixture
def run(tmp_path: Path, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that has ended, and another one beside it, which goes on."""
    run = submitted(tmp_path / "runs/one", scheduler)
    submitted(tmp_path / "runs/other", scheduler)
    monkeypatch.setattr(schedulers, "get", lambda _: scheduler)
    record.save(dataclasses.replace(run.record, exit=DONE))
    return run


def test_a_run_is_removed_and_nothing_else(run: Run, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("kept")
    for link, target in (("logs/directory", "kept"), ("logs/file", "kept/file"), ("top", "kept")):
        (run.path / link).symlink_to(tmp_path / target)
    (run.path / "checkpoint/step-1").write_bytes(b"x" * 10_000)
    found = check(run.path, [])
    assert (found.path, found.has_checkpoint, found.size >= 10_000) == (run.path, True, True)
    remove(found)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["other"]
    assert (tmp_path / "kept/file").read_text() == "kept"


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (Status("waiting", "Resources"), "it has not ended"),
        (Status("running"), "it has not ended"),
        (Status("running", note="no answer; retrying"), "it is unknown whether it has ended"),
        (Status("unknown", note="of another cluster"), "it is unknown whether it has ended"),
    ],
)
def test_what_may_go_on_is_not_removed(run: Run, scheduler: StandIn, status: Status, why: str) -> None:
    record.save(run.record)
    scheduler.statuses = [status]
    with pytest.raises(DataError, match=rf"^run {run.path} cannot be removed: {why}. Cancel it first: ctrain cancel"):
        check(run.path, [])


def test_what_is_no_run_is_not_removed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run.path)
    with pytest.raises(DataError, match=r"/link is a link\. Name the run's own directory$"):
        check(tmp_path / "link", [])
    with pytest.raises(DataError, match="is not a run directory"):
        check(tmp_path, [])
    (run.path / "record.json").unlink()
    with pytest.raises(DataError, match="is not a run directory"):
        check(run.path, [])


def test_a_run_of_another_user_is_not_removed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: run.path.stat().st_uid + 1)
    with pytest.raises(DataError, match="belongs to another user"):
        check(run.path, [])


def test_files_that_may_still_appear_are_waited_for(run: Run) -> None:
    record.save(dataclasses.replace(run.record, exit=DONE, doubtful=True, end=record.iso(9e9)))
    doubtful = check(run.path, [])  # concluded again, without doubts on a file system without caches
    assert not doubtful.record.doubtful


def test_a_checkpoint_that_an_open_run_resumes_is_not_removed(run: Run) -> None:
    other = run.path.with_name("other")
    resuming = dataclasses.replace(record.load(other), resume=f"{run.path}/checkpoint")
    record.save(resuming)
    with pytest.raises(DataError, match="run other resumes its checkpoint"):
        check(run.path, [run.path, other])
    record.save(dataclasses.replace(resuming, exit=DONE))
    assert check(run.path, [run.path, other]).path == run.path


def test_what_an_error_leaves_can_be_removed_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    found = check(run.path, [])
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", refuse)
        with pytest.raises(CtrainError, match=rf"^cannot remove {run.path}/\w+: Permission denied$"):
            remove(found)
    remove(check(run.path, []))
    assert not run.path.exists()


def test_a_copy_is_removed_and_not_what_it_was_copied_from(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    remove(check(copy, []))
    assert run.path.exists() and not copy.exists()
