from __future__ import annotations

import os

import pytest

from ctrain_runtime.cli import output as module
from ctrain_runtime.cli.foot import Foot
from ctrain_runtime.cli.output import Writer
from samples.screen import Screen, shown

LINES = ("\033[1mrun one\033[0m", "ranks 2")


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The size of the terminal, which may change."""
    now = {"columns": 20}
    monkeypatch.setattr(module.shutil, "get_terminal_size", lambda: os.terminal_size((now["columns"], 24)))
    return now


def test_the_foot_stays_below_the_output(size: dict[str, int]) -> None:
    screen = Screen()
    foot = Foot(Writer(screen))
    foot.write("epoch 1\n")
    foot.lay(LINES)
    foot.write("epoch 2\n")
    assert shown(screen.getvalue(), size["columns"]) == ["epoch 1", "epoch 2", "run one", "ranks 2"]
    foot.close()
    assert shown(screen.getvalue(), size["columns"]) == ["epoch 1", "epoch 2"]


def test_a_bar_of_the_program_moves_above_the_foot(size: dict[str, int]) -> None:
    """As tqdm draws it: a line that does not end for an epoch."""
    screen = Screen()
    foot = Foot(Writer(screen))
    foot.write("epoch 1\n")
    foot.lay(LINES)
    for percent in (10, 50, 100):
        foot.write(f"\r\033[32m{percent}%\033[0m|###")
        assert shown(screen.getvalue(), size["columns"]) == ["epoch 1", f"{percent}%|###", "run one", "ranks 2"]
    foot.write("\nepoch 2\n")
    foot.close()
    assert shown(screen.getvalue(), size["columns"]) == ["epoch 1", "100%|###", "epoch 2"]


def test_a_bar_that_returns_after_each_step_is_written_over(size: dict[str, int]) -> None:
    screen = Screen()
    foot = Foot(Writer(screen))
    foot.lay(LINES)
    for percent in (10, 50):
        foot.write(f"{percent}%\r")
    assert shown(screen.getvalue(), size["columns"]) == ["50%", "run one", "ranks 2"]


def test_a_long_unfinished_line_is_not_lost(size: dict[str, int]) -> None:
    screen = Screen()
    foot = Foot(Writer(screen))
    foot.lay(LINES)
    foot.write("0123456789" * 3)
    foot.lay((*LINES, "news"))
    assert shown(screen.getvalue(), size["columns"]) == ["0123456789" * 2, "0123456789", "run one", "ranks 2", "news"]
    foot.write("!\n")
    foot.close()
    assert shown(screen.getvalue(), size["columns"]) == ["0123456789" * 2, "0123456789!"]


def test_lines_that_a_narrower_terminal_wraps_are_erased_whole(size: dict[str, int]) -> None:
    screen = Screen()
    foot = Foot(Writer(screen))
    foot.write("epoch 1\n")
    foot.lay(("x" * 19, "y" * 19))
    size["columns"] = 10
    foot.lay(("run", "ranks"))
    assert shown(screen.getvalue(), size["columns"]) == ["epoch 1", "run", "ranks"]


def test_nothing_is_drawn_beside_a_line_that_moves_the_cursor(size: dict[str, int]) -> None:
    screen = Screen()
    foot = Foot(Writer(screen))
    foot.write("a\033[5Cb")
    foot.lay(LINES)
    assert shown(screen.getvalue(), size["columns"])[0] == "ab"
    assert "run one" not in screen.getvalue()
