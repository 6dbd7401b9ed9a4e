from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from ctrain_builder.cli.progress import ProgressLines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "a.log"
    path.write_text("first\nsecond \x1b[1mbold\n")
    return path


def test_a_line_when_a_step_begins_and_ends(log: Path) -> None:
    out = io.StringIO()
    lines = ProgressLines(out, "small 1.0  ")
    step = lines.begin("layer", "base", log, 61)
    lines.done("layer", "upper", "cached", 5_000_000)
    lines.begin("test", "imports", log).end("passed")
    lines.tick()
    step.end("built", 7)
    lines.close()
    assert [line.split()[2:6] for line in out.getvalue().splitlines()] == [
        ["layer", "base", "started", str(log)],
        ["layer", "upper", "cached", "5.0"],
        ["test", "imports", "passed", "0.0"],
        ["layer", "base", "built", "7"],
    ]
    assert out.getvalue().splitlines()[0].endswith("usually takes 1 min 1 s")


def test_where_no_terminal_is_a_step_is_shown_each_minute(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("ctrain_builder.cli.progress.time.monotonic", lambda: clock[0])
    log.write_text("compiling " + "x" * 300)
    out = io.StringIO()
    lines = ProgressLines(out, "small 1.0  ")
    step = lines.begin("layer", "base", log, 300)
    for clock[0] in (1059.0, 1060.0, 1061.0, 1119.0, 1120.0):
        lines.tick()
    step.end("built", 7)
    lines.tick()
    shown = out.getvalue().splitlines()
    assert len(shown) == 4
    assert shown[1].startswith("small 1.0  layer   base                  1 min 0 s of about 5 min 0 s  compiling xxx")
    assert "2 min 0 s of about" in shown[2]
    assert len(shown[1]) == len(shown[2]) == 131


def test_on_a_terminal_all_steps_that_run_are_shown(log: Path) -> None:
    pytest.importorskip("rich")
    out = Terminal()
    lines = ProgressLines(out)
    lines.begin("test", "imports", log, 90)
    lines.begin("test", "all-reduce [by MPI]", log)  # no markup
    text = lines._render().plain
    lines.note("waiting")
    lines.close()
    assert [line.split()[:2] for line in text.splitlines()] == [["test", "imports"], ["test", "all-reduce"]]
    assert "0.0 s of about 1 min 30 s" in text
    assert "[by MPI]" in text
    assert text.splitlines()[0].endswith("second bold"), "control characters are left out"
    assert "waiting" in out.getvalue()
    lines.note("after the end")
    assert out.getvalue().endswith("after the end\n")


def test_a_step_that_has_ended_is_not_drawn_again(log: Path) -> None:
    pytest.importorskip("rich")
    out = Terminal()
    lines = ProgressLines(out)
    step = lines.begin("test", "imports", log)
    lines._live.refresh()  # type: ignore[union-attr]  # it is a terminal
    step.end("passed")
    lines.close()
    before, after = out.getvalue().split("passed")
    assert "imports" in before
    assert "imports" not in after


def test_without_the_library_a_terminal_gets_the_plain_lines(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    out = Terminal()
    lines = ProgressLines(out)
    lines.begin("layer", "base", log).end("built", 7)
    lines.close()
    assert "\x1b" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 2
