from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from ctrain_builder.cli.progress import ProgressLines
from ctrain_builder.progress import StepName


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


def test_where_no_terminal_is_a_step_is_shown_twice_a_minute(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("ctrain_builder.cli.progress.time.monotonic", lambda: clock[0])
    log.write_text("compiling " + "x" * 300)
    out = io.StringIO()
    lines = ProgressLines(out, "small 1.0  ")
    step = lines.begin("layer", "base", log, 300)
    for clock[0] in (1029.0, 1030.0, 1031.0, 1059.0, 1060.0):
        lines.tick()
    step.end("built", 7)
    lines.tick()
    shown = out.getvalue().splitlines()
    assert len(shown) == 4
    assert shown[1].startswith("small 1.0  layer   base                  30 s of about 5 min 0 s  compiling xxx")
    assert shown[1].endswith("x  30 s elapsed")
    assert "1 min 0 s of about" in shown[2]
    assert len(shown[1]) == len(shown[2]) == 131
    assert shown[3].endswith("1 min 0 s    (1 min 0 s elapsed)")


def test_what_is_left_is_told_with_what_that_rests_on(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("ctrain_builder.cli.progress.time.monotonic", lambda: clock[0])
    out = io.StringIO()
    lines = ProgressLines(out)
    lines.expect({StepName("layer", "base"): 40.0, StepName("test"): 30.0}, "as the last builds took it")
    step = lines.begin("layer", "base", log)
    clock[0] = 1030.0
    lines.tick()
    clock[0] = 1080.0
    step.end("built", 7)
    lines.begin("test", "imports", log).end("passed")
    shown = out.getvalue().splitlines()
    assert shown[0] == "about 1 min 10 s to go, as the last builds took it"
    assert shown[2].endswith("  30 s elapsed, about 40 s left")
    assert shown[3].endswith("(1 min 20 s elapsed, about 1 min 0 s left)"), "this machine needs twice as long"
    assert "elapsed" not in shown[4]


def test_where_nothing_is_known_nothing_is_told(log: Path) -> None:
    out = io.StringIO()
    lines = ProgressLines(out)
    lines.expect({}, "")
    lines.begin("layer", "base", log).end("built", 7)
    assert " left" not in out.getvalue() and "to go" not in out.getvalue()


def test_on_a_terminal_all_steps_that_run_are_shown(log: Path) -> None:
    pytest.importorskip("rich")
    out = Terminal()
    lines = ProgressLines(out)
    lines.begin("test", "imports", log, 90)
    lines.begin("test", "all-reduce [by MPI]", log)  # no markup
    text = lines._render().plain
    lines.note("waiting")
    lines.close()
    *steps, total = text.splitlines()
    assert [line.split()[:2] for line in steps] == [["test", "imports"], ["test", "all-reduce"]]
    assert total.endswith(" s elapsed")
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


def test_what_a_running_step_shows_has_no_secrets(tmp_path: Path) -> None:
    """Its log is masked when its command has ended."""
    log = tmp_path / "log"
    log.write_text("+ curl -H correct-horse\n")
    lines = ProgressLines(io.StringIO(), live=False, secrets=("correct-horse",))
    assert lines.begin("layer", "base", log).describe().endswith("+ curl -H ****")
