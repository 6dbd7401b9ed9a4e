from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.cli import report
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.run.conclude import conclude
from ctrain_runtime.schedulers.protocol import Outcome, Status
from samples.runs import StandIn, submitted, write_end, write_ranks


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs that have ended, and the current directory beside them."""
    for name in ("one", "two"):
        run = submitted(tmp_path / "runs" / name, StandIn())
        write_ranks(run.path, 0, 0)
        write_end(run.path, 0)
        conclude(run, Status("ended", "X", Outcome.COMPLETED))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "runs"


def ctrain(runs: Path, *arguments: str) -> int:
    return main(RUNTIME_VERBS, ["report", *arguments, "--site", "local", "--runs", str(runs)])


def test_a_page_for_its_owner_in_the_current_directory(runs: Path, capsys: Any) -> None:
    assert ctrain(runs, "one") == 0
    path = Path("one.html").absolute()
    assert capsys.readouterr().out == f"report: {path}\n"
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>\n<html")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ctrain(runs, "one", "two", "one") == 0
    assert "2 runs compared" in Path("one-compared.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in Path().iterdir()) == ["one-compared.html", "one.html"]


def test_text_writes_no_file(runs: Path, capsys: Any) -> None:
    assert ctrain(runs, "one", "two", "--text") == 0
    assert "no setting differs" in capsys.readouterr().out
    assert not list(Path().iterdir())


def test_a_run_that_was_moved_is_read_where_it_is(runs: Path) -> None:
    (runs / "one/metrics.jsonl").write_text('{"step": 1, "loss": 0.125}\n')
    (runs / "one").rename(runs / "archived")
    assert ctrain(runs, "archived", "-o", "x.html") == 0
    page = Path("x.html").read_text(encoding="utf-8")
    assert "0.125" in page
    assert f"<td>{runs}/archived</td>" in page


def test_mistakes(runs: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_RUNS", 1)
    for code, problem, arguments in (
        (64, "--text writes no file", ("one", "--text", "-o", "x.html")),
        (64, ". is a directory", ("one", "-o", ".")),
        (64, "2 runs: at most 1 at a time", ("one", "two")),
        (70, "cannot write no/x.html: No such file or directory", ("one", "-o", "no/x.html")),
        (71, "run 'three' not found", ("three",)),
    ):
        assert ctrain(runs, *arguments) == code, problem
        assert problem in capsys.readouterr().err
