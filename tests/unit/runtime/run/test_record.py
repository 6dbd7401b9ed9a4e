from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from ctrain_runtime.errors import ConfigError, DataError
from ctrain_runtime.images import user_layer
from ctrain_runtime.run import directory, record
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.record import Attempt, Exit, Record
from samples.layers import write_layer
from samples.plans import a_job, a_launch, a_manifest, a_plan


@pytest.fixture
def begun(tmp_path: Path) -> Record:
    launch = a_launch(a_plan(run_directory=tmp_path / "one", resume="/runs/old/checkpoint", data="/data/set"))
    directory.create(launch)
    return record.begin(launch.plan)


def test_what_a_record_says_of_a_run(tmp_path: Path) -> None:
    layer = write_layer(tmp_path / "my.sqsh", a_manifest(), einops="0.8.2")
    plan = a_plan(
        run_directory=tmp_path / "one",
        data="/data/set",
        resume="/runs/old/checkpoint",
        env={"COLOUR": "red", "WANDB_API_KEY": "s3cret", "SHELL_VALUE": None},
        layers=(user_layer.read(layer),),
    )
    begun = record.begin(plan)
    assert (begun.run, begun.run_directory) == ("one", str(tmp_path / "one"))
    assert (begun.data, begun.resume, begun.launcher) == ("/data/set", "/runs/old/checkpoint", "mpi")
    assert {"COLOUR", "WANDB_API_KEY", "SHELL_VALUE"} <= set(begun.environment)
    assert "s3cret" not in json.dumps(dataclasses.asdict(begun))
    assert begun.layers == ({"path": str(layer), "digest": user_layer.read(layer).digest},)
    assert begun.image["name"] == "pytorch"
    assert (begun.start, begun.end, begun.exit, begun.attempts) == (None, None, None, ())


def test_the_git_commit_of_the_jobs_directory(tmp_path: Path) -> None:
    job = a_job(workdir=str(tmp_path))
    assert record.begin(a_plan(job=job)).revision == ""  # no repository
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert record.begin(a_plan(job=job)).revision == head
    assert record.begin(a_plan()).revision == ""  # an example inside the image


def test_a_machine_without_git(programs: Path, tmp_path: Path) -> None:
    assert not list(programs.iterdir())
    assert record.begin(a_plan(job=a_job(workdir=str(tmp_path)))).revision == ""


def test_a_record_reads_back(begun: Record) -> None:
    attempt = Attempt("7", "job 7", "2026-11-22T00:00:00+00:00", outcome="failed", word="NODE_FAIL")
    whole = dataclasses.replace(
        begun, attempts=(attempt,), nodes=("gpu01",), exit=Exit(1, "why", "scheduler", Ending.FAILED)
    )
    for written in (begun, whole):
        record.save(written)
        assert record.load(Path(begun.run_directory)) == written


@pytest.mark.parametrize(
    ("code", "by", "outcome", "expected"),
    [
        (0, "program", "completed", Ending.COMPLETED),
        (130, "user", "cancelled by its user", Ending.CANCELLED),
        (143, "scheduler", "time limit reached", Ending.TIME_LIMIT),
        (1, "scheduler", "never started", Ending.NEVER_STARTED),
        (143, "scheduler", "no longer known to the scheduler", Ending.UNKNOWN),
        (9, "program", "failed", Ending.FAILED),
        (80, "ctrain", "failed", Ending.REFUSED),
    ],
)
def test_a_record_without_an_ending_is_read_with_one(
    begun: Record, code: int, by: str, outcome: str, expected: Ending
) -> None:
    job = {"job_id": "7", "name": "job 7", "submitted": "2026-11-22T00:00:00+00:00", "outcome": outcome}
    ended = {"code": code, "reason": "why", "by": by}
    data = {**dataclasses.asdict(begun), "schema": 2, "exit": ended, "attempts": [job]}
    (Path(begun.run_directory) / "record.json").write_text(json.dumps(data))
    assert record.load(Path(begun.run_directory)).exit == Exit(code, "why", by, expected)


def test_an_ending_that_is_none_is_refused(begun: Record) -> None:
    ended = {"code": 1, "reason": "why", "by": "program", "ending": "fine"}
    data = {**dataclasses.asdict(begun), "exit": ended}
    (Path(begun.run_directory) / "record.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"ending must be completed or cancelled or .*, not 'fine'"):
        record.load(Path(begun.run_directory))


def test_records_of_other_ctrains_are_named(begun: Record) -> None:
    run = Path(begun.run_directory)
    with pytest.raises(DataError, match=r"one is not a run directory: cannot read record\.json: No such file"):
        record.load(run)
    for schema in (1, 4, None):
        data = {**dataclasses.asdict(begun), "schema": schema}
        (run / "record.json").write_text(json.dumps(data))
        with pytest.raises(ConfigError, match=rf"unsupported schema {schema} in .*record\.json \(supported: 2, 3\)"):
            record.load(run)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 2}', '{"schema": 2, "run": 5}'])
def test_damaged_records_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(ConfigError, match=r"record\.json"):
        record.load(tmp_path)


def test_times_are_in_utc() -> None:
    assert record.iso(0) == "1970-01-01T00:00:00+00:00"
    assert record.iso(1.9) == "1970-01-01T00:00:01+00:00"
