from __future__ import annotations

import errno
import functools
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.errors import ConfigError, CtrainError, DataError, DiskFullError, UsageError
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.run import directory
from samples.plans import a_launch, a_plan, a_site
from samples.runs import created


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(a_plan(run_directory=tmp_path / "runs/digits-1"), ("sbatch", "job.sh"), {"job.sh": "echo 대전\n"})


def test_a_run_is_named_after_its_job_and_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory.time, "strftime", lambda _: "1121-041213")
    assert directory.new_run_path(tmp_path, "digits") == tmp_path / "digits-1121-041213"
    (tmp_path / "digits-1121-041213").mkdir()
    (tmp_path / "digits-1121-041213-2").mkdir()
    assert directory.new_run_path(tmp_path, "digits") == tmp_path / "digits-1121-041213-3"


def test_a_run_of_a_given_name(tmp_path: Path) -> None:
    assert directory.new_run_path(tmp_path, "digits", "my_run-1.2") == tmp_path / "my_run-1.2"
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError, match=rf"^run {tmp_path}/taken already exists. Choose another --name$"):
        directory.new_run_path(tmp_path, "digits", "taken")


@pytest.mark.parametrize("name", ["../up", "/abs", "a/b", ".hidden", "-n", "a b", "a\n", "é"])
def test_names_that_cannot_be_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"invalid --name {name!r}")):
        directory.new_run_path(tmp_path, "digits", name)


def test_the_word_for_the_newest_run_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--name last: this word means the newest run. Choose another --name"):
        directory.new_run_path(tmp_path, "digits", "last")


def test_create(launch: Launch) -> None:
    path = directory.create(launch)
    names = {entry.name for entry in path.iterdir()}
    assert names == {
        *(".submit", "job.sh", "events.jsonl"),
        *("logs", "nodes", "checkpoint", "collectives", "watch", "stacks"),
    }
    assert (path / "job.sh").read_text(encoding="utf-8") == "echo 대전\n"
    directory.write_plan(launch)
    assert json.loads((path / "plan.json").read_text()) == json.loads(json.dumps(directory.as_data(launch)))


def test_create_never_touches_an_existing_run(launch: Launch) -> None:
    path = directory.create(launch)
    (path / "checkpoint/step-100").touch()
    with pytest.raises(UsageError, match=rf"^run {path} already exists. Choose another --name$"):
        directory.create(launch)
    assert (path / "checkpoint/step-100").exists()


def test_of_two_submissions_with_one_name_one_has_reserved_it(launch: Launch) -> None:
    path = Path(launch.plan.run_directory)
    assert (directory.reserve(launch.plan), directory.reserve(launch.plan)) == (True, False)
    assert path.stat().st_mode & 0o777 == 0o700
    assert directory.create(launch) == path
    directory.release(launch.plan)  # what has been filled stays
    assert (path / "job.sh").exists()


def test_a_link_to_nowhere_is_an_error_and_no_name_that_was_taken(launch: Launch) -> None:
    path = Path(launch.plan.run_directory)
    path.parent.mkdir()
    path.symlink_to("nowhere")
    with pytest.raises(CtrainError, match=r"cannot create the run directory .*: File exists"):
        directory.reserve(launch.plan)


def test_create_on_a_full_disk_leaves_nothing(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(directory, "write_json", full)
    with pytest.raises(DiskFullError, match="No space left on device"):
        created(launch)
    assert not Path(launch.plan.run_directory).exists()


def test_a_disk_that_is_full_while_a_tree_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    launch = a_launch(a_plan(run_directory=tmp_path / "one", preflight="strict"))
    assert launch.plan.checks.preflight
    monkeypatch.setattr(shutil, "copytree", functools.partial(shutil.copytree, copy_function=full))
    with pytest.raises(DiskFullError, match=r"cannot create the run directory .*/one: Disk quota exceeded\. Choose"):
        directory.create(launch)
    assert not (tmp_path / "one").exists()


def test_a_run_with_secrets_is_its_owners_alone_and_shows_none(tmp_path: Path) -> None:
    plan = a_plan(run_directory=tmp_path / "one", env={"WANDB_API_KEY": "it's s3cret", "COLOUR": "red"})
    launch = a_launch(plan)
    path = created(launch)
    assert path.stat().st_mode & 0o777 == 0o700
    assert "s3cret" in "".join(launch.scripts.values())  # what runs has the value
    shown = json.dumps(directory.as_data(launch))
    assert "s3cret" not in shown + (path / "plan.json").read_text()
    assert directory.as_data(launch)["plan"]["environment"]["variables"]["COLOUR"] == "red"


def test_a_run_is_its_owners_alone_unless_the_site_shares_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)  # new directories get its group, which may be a quota's
    private = directory.create(a_launch(a_plan(run_directory=tmp_path / "one")))
    assert private.stat().st_mode & 0o7777 == 0o2700
    plan = a_plan(run_directory=tmp_path / "two", site=a_site(share_runs=True))
    shared = directory.create(a_launch(plan))
    umask = os.umask(0)
    os.umask(umask)
    assert shared.stat().st_mode & 0o777 == 0o777 & ~umask
    for run in (private, shared):  # scripts hold values of variables, whatever these are called
        assert {(run / name).stat().st_mode & 0o777 for name in ("job.sh", "task.sh")} == {0o600}


def test_a_plan_reads_back(tmp_path: Path) -> None:
    launch = a_launch(a_plan(run_directory=tmp_path / "one"))
    assert directory.load_launch(created(launch)) == launch


@pytest.mark.parametrize(
    ("text", "complaint"), [("{", "is damaged"), ("[]", "not a JSON object"), ("{}", "missing"), ('"', "is damaged")]
)
def test_a_damaged_plan_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"plan.json.*{complaint}|{complaint}"):
        directory.load_launch(tmp_path)
    with pytest.raises(DataError, match=r"nowhere is not a run directory: cannot read plan\.json: No such file"):
        directory.load_launch(Path("nowhere"))


def test_a_plan_of_an_older_ctrain_reads_with_the_defaults_of_younger_keys(tmp_path: Path) -> None:
    plan = created(a_launch(a_plan(run_directory=tmp_path / "run"))) / "plan.json"
    data = json.loads(plan.read_text())
    del data["files"], data["plan"]["environment"]["library_paths"]
    plan.write_text(json.dumps(data))
    launch = directory.load_launch(plan.parent)
    assert (launch.files, launch.plan.environment.library_paths, launch.plan.run) == ((), (), "run")


@pytest.mark.parametrize("schema", [99, "2", None, True])
def test_a_plan_of_a_younger_ctrain_is_refused(tmp_path: Path, schema: object) -> None:
    plan = created(a_launch(a_plan(run_directory=tmp_path / "run"))) / "plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "schema": schema}))
    complaint = rf"unsupported schema {schema!r} in .*plan\.json \(supported: 1 to 3\)\. Use the ctrain that"
    with pytest.raises(ConfigError, match=complaint):
        directory.load_launch(plan.parent)


def test_a_missing_mount_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    directory.check_mount_sources(a_plan(run_directory=tmp_path / "run", mounts=(f"{tmp_path}/there",)))
    with pytest.raises(DataError, match=r"^cannot mount /not/there at /data: not found. Check the path$"):
        directory.check_mount_sources(a_plan(run_directory=tmp_path / "run", mounts=("/not/there:/data",)))
    of_nodes = a_plan(run_directory=tmp_path / "run", site=a_site(mounts=("/not/there:/data",)))
    directory.check_mount_sources(of_nodes, ["/not/there"])


def test_write_json_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    directory.write_json(path, {"a": 1})
    directory.write_json(path, {"a": "é"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "é"}
    assert list(tmp_path.iterdir()) == [path]


def test_write_json_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    directory.write_json(path, {"a": 1})

    def full(self: Path, *_: Any, **__: Any) -> None:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        directory.write_json(path, {"a": 2})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_the_checkpoint_of_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "old/checkpoint").mkdir(parents=True)
    complaint = rf"^run old has no checkpoint to resume from. Expected in {tmp_path}/old/checkpoint$"
    with pytest.raises(DataError, match=complaint):
        directory.checkpoint_of(Path("old"))
    (tmp_path / "old/checkpoint/step-100").touch()
    assert directory.checkpoint_of(Path("old")) == tmp_path / "old/checkpoint"
    with pytest.raises(DataError, match="run nowhere has no checkpoint"):
        directory.checkpoint_of(Path("nowhere"))


def test_a_short_secret_is_masked_where_it_is_set_and_nowhere_else() -> None:
    launch = a_launch(a_plan(env={"MY_KEY": "a", "OTHER": "a"}))
    shown = directory.as_data(launch)
    variables = shown["plan"]["environment"]["variables"]
    assert (variables["MY_KEY"], variables["OTHER"]) == ("***", "a")
    hidden = {name: text.replace("_MY_KEY=a\n", "_MY_KEY=***\n") for name, text in launch.scripts.items()}
    assert shown["scripts"] == hidden != launch.scripts
