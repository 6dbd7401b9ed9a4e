from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.errors import CtrainError, DataError, DiskFullError, UsageError
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.run import directory
from samples.plans import a_plan


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(a_plan(run_directory=tmp_path / "runs/digits-1"), ("sbatch", "job.sh"), {"job.sh": "echo 대전\n"})


def test_choose_by_the_jobs_name_and_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory.time, "strftime", lambda _: "1121-041213")
    assert directory.choose(tmp_path, "digits") == tmp_path / "digits-1121-041213"
    (tmp_path / "digits-1121-041213").mkdir()
    (tmp_path / "digits-1121-041213-2").mkdir()
    assert directory.choose(tmp_path, "digits") == tmp_path / "digits-1121-041213-3"


def test_choose_a_given_name(tmp_path: Path) -> None:
    assert directory.choose(tmp_path, "digits", "my_run-1.2") == tmp_path / "my_run-1.2"
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError, match=rf"^there is a run {tmp_path}/taken already. Choose another --name$"):
        directory.choose(tmp_path, "digits", "taken")


@pytest.mark.parametrize("name", ["../up", "/abs", "a/b", ".hidden", "-n", "a b", "a\n", "é"])
def test_names_that_are_no_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--name {name!r} is not a name")):
        directory.choose(tmp_path, "digits", name)


def test_create(launch: Launch) -> None:
    path = directory.create(launch)
    names = {entry.name for entry in path.iterdir()}
    assert names == {"plan.json", "job.sh", "logs", "ranks", "checkpoint"}
    assert (path / "job.sh").read_text(encoding="utf-8") == "echo 대전\n"
    assert json.loads((path / "plan.json").read_text()) == json.loads(json.dumps(directory.as_data(launch)))


def test_create_never_touches_a_run_that_is_there(launch: Launch) -> None:
    path = directory.create(launch)
    (path / "checkpoint/step-100").touch()
    with pytest.raises(CtrainError, match=r"can't make the run directory .*: File exists. Choose another place"):
        directory.create(launch)
    assert (path / "checkpoint/step-100").exists()


def test_create_on_a_full_disk_leaves_nothing(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(directory, "write_json", full)
    with pytest.raises(DiskFullError, match="No space left on device"):
        directory.create(launch)
    assert not Path(launch.plan.run_directory).exists()


def test_check_names_a_mount_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    directory.check(a_plan(run_directory=tmp_path / "run", mounts=(f"{tmp_path}/there",)))
    with pytest.raises(
        DataError, match=r"^/not/there does not exist, so it can't be mounted at /data. Check the path$"
    ):
        directory.check(a_plan(run_directory=tmp_path / "run", mounts=("/not/there:/data",)))


def test_write_json_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    directory.write_json(path, {"a": 1})
    directory.write_json(path, {"a": "é"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "é"}
    assert list(tmp_path.iterdir()) == [path]


def test_the_checkpoint_of_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "old/checkpoint").mkdir(parents=True)
    with pytest.raises(
        DataError, match=rf"^run old has no checkpoint to go on from. It would be in {tmp_path}/old/che"
    ):
        directory.checkpoint_of(Path("old"))
    (tmp_path / "old/checkpoint/step-100").touch()
    assert directory.checkpoint_of(Path("old")) == tmp_path / "old/checkpoint"
    with pytest.raises(DataError, match="run nowhere has no checkpoint"):
        directory.checkpoint_of(Path("nowhere"))
