from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from samples.reports import a_subject


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for parent in ("runs", "others"):
        a_subject(tmp_path / parent / "one", 0, metrics='{"step": 1, "loss": 2}\n')
    return tmp_path / "runs"


def ctrain(*arguments: str) -> int:
    return main(RUNTIME_VERBS, ["export", *arguments, "--site", "local", "--runs", "runs"])


@pytest.mark.usefixtures("runs")
def test_events_of_tensorboard(capsys: Any) -> None:
    assert ctrain("one", "--to", "tensorboard", "events") == 0
    assert capsys.readouterr().out == "exported: one -> events/one (1 value)\n"
    assert len(list(Path("events/one").iterdir())) == 1


@pytest.mark.usefixtures("runs")
def test_a_library_that_is_not_installed(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
        assert ctrain("one", "--to", library) == 70
        error = capsys.readouterr().err
        assert f"this command needs the Python package {library}, which is not installed" in error
        assert error.count("\n") == 1


def test_mistakes(runs: Path, capsys: Any) -> None:
    Path("file").touch()
    for code, problem, arguments in (
        (64, "--to must be tensorboard, mlflow or wandb, not tensorbord. Did you mean", ("one", "--to", "tensorbord")),
        (64, "--to tensorboard needs a directory", ("one", "--to", "tensorboard")),
        (64, "--to takes a program and one place, not 2", ("one", "--to", "mlflow", "a", "b")),
        (64, "2 runs have the name one", ("one", str(runs.parent / "others/one"), "--to", "tensorboard", "events")),
        (70, "file/one: Not a directory", ("one", "--to", "tensorboard", "file")),
        (71, "run 'three' not found", ("three", "--to", "tensorboard", "events")),
    ):
        assert ctrain(*arguments) == code, problem
        assert problem in capsys.readouterr().err
