"""Runs that a newer ctrain has started: every verb names the file and what to use, and nothing of the run is lost."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.run import directory, record
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.record import Exit
from samples.plans import LOCAL
from samples.runs import StandIn, submitted

Out = pytest.CaptureFixture[str]
NEWER = [
    (file, keys)
    for file in ("plan.json", "record.json")
    for keys in ({"schema": 9}, {"colour": "red"})  # a schema, or a key of the same one
]


@pytest.fixture(params=NEWER, ids=str)
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That file of run `one`, which has ended long ago, with a checkpoint, of a newer ctrain. `mine` is of this one."""
    monkeypatch.setattr("ctrain_runtime.schedulers.process.name", lambda _: "process 7")
    for name in ("one", "mine"):
        begun = submitted(tmp_path / "runs" / name, StandIn(), **LOCAL)
        ended = Exit(0, "completed", "program", Ending.COMPLETED)
        record.save(dataclasses.replace(begun.record, exit=ended, end="2026-01-01T00:00:00+00:00"))
        (begun.path / "checkpoint/step10").touch()
    file, keys = request.param
    path = tmp_path / "runs/one" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "verb",
    [
        *(
            "attach one",
            "cancel one",
            "logs one",
            "report one --text",
            "replay one --dry-run",
            "status one",
            "wait one",
        ),
        *("compare one mine", "export one --to tensorboard out", "runs rm one --yes"),
    ],
)
def test_a_verb_refuses_it_in_one_line(verb: str, run: Path, capsys: Out) -> None:
    before = contents(run.parent)
    assert main(RUNTIME_VERBS, [*shlex.split(verb), "--site", "local", "--runs", "runs"]) == 66
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(run) in error
    assert "newer" in error
    assert contents(run.parent) == before


@pytest.mark.parametrize("verb", ["runs", "runs gc --older-than 1m --checkpoints --yes"])
def test_it_is_named_beside_the_others_and_kept(verb: str, run: Path, capsys: Out) -> None:
    before = contents(run.parent)
    assert main(RUNTIME_VERBS, [*shlex.split(verb), "--site", "local", "--runs", "runs"]) == 0
    assert str(run) in capsys.readouterr().err
    assert contents(run.parent) == before


def test_its_checkpoint_can_be_resumed_from(run: Path) -> None:
    """That needs neither its plan nor its record."""
    assert directory.checkpoint_of(run.parent) == run.parent / "checkpoint"


def test_the_checkpoint_that_it_resumes_is_not_removed(run: Path, capsys: Out) -> None:
    path, mine = run.parent / "record.json", run.parents[1] / "mine"
    going_on = {**json.loads(path.read_text()), "exit": None, "end": None, "resume": str(mine / "checkpoint")}
    path.write_text(json.dumps(going_on))
    assert main(RUNTIME_VERBS, ["runs", "rm", "mine", "--yes", "--site", "local", "--runs", "runs"]) == 71
    assert "run one resumes its checkpoint" in capsys.readouterr().err
    assert (mine / "checkpoint/step10").exists()
