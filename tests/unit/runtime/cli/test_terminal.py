from __future__ import annotations

import io
from typing import Any, Optional

import pytest

from ctrain_runtime.cli import terminal as module
from ctrain_runtime.cli.terminal import Terminal, progress
from ctrain_runtime.schedulers.handle import Status

RECORD = {"step": 412, "steps": 1251, "loss": 5.914, "epoch": 1, "epochs": 90, "images_per_second": 11930.4}


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("record", "left", "line"),
    [
        (
            RECORD,
            9060.0,
            "epoch 1/90  ██████░░░░░░░░░░░░░░  412/1251  loss 5.91  11,930 images/s  ETA 2 h 31 min",
        ),
        ({"step": 3, "loss": 1}, None, "loss 1.00"),
        ({"step": 9, "steps": 3, "loss": 0.5}, None, "████████████████████  9/3  loss 0.50"),
        ({"step": 0, "steps": 0, "loss": 0.5}, None, "loss 0.50"),
        ({}, None, ""),
    ],
)
def test_progress(record: dict[str, Any], left: Optional[float], line: str) -> None:
    assert progress(record, left) == line


def test_a_file_gets_plain_lines_and_no_bar() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.say("site      local")
    terminal.started("job 7")
    for status in (
        Status("waiting", "Priority"),
        Status("waiting", "Priority"),
        Status("running"),
        Status("ended", "X"),
    ):
        terminal.status(status)
    terminal.output("epoch 1\nhalf a li")
    terminal.metrics([RECORD])
    terminal.output("ne")
    terminal.cancelling("job 7")
    terminal.close()
    assert out.getvalue() == (
        "site      local\njob 7 waits in the queue (Priority)\njob 7 started\n"
        "epoch 1\nhalf a line\ncancelling job 7 ...\n"
    )
    assert terminal.step == 412


def test_a_reason_that_is_none_and_an_answer_that_is_missing() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.started("job 7")
    terminal.status(Status("waiting", "None"))
    terminal.status(Status("running", "Slurm does not answer (x); still trying"))
    assert out.getvalue() == "job 7 waits in the queue\nSlurm does not answer (x); still trying\n"


def test_the_bar_stays_below_the_output_and_goes_at_the_end() -> None:
    screen = Screen()
    terminal = Terminal(screen)
    terminal.metrics([{"step": 1, "loss": 2}])
    terminal.output("epoch 1\n")
    terminal.output("half")
    terminal.metrics([{"step": 2, "loss": 1}])
    terminal.close()
    erase = "\r\033[K"
    assert screen.getvalue() == f"loss 2.00{erase}epoch 1\nloss 2.00{erase}half\n"


def test_output_after_half_a_line_is_never_erased() -> None:
    """The bar is not drawn beside an unfinished line of rank 0, so taking the bar away must not take that line."""
    screen = Screen()
    terminal = Terminal(screen)
    terminal.metrics([{"step": 1, "loss": 2}])
    terminal.output("half")
    terminal.output(" a line\n")
    assert screen.getvalue() == "loss 2.00\r\033[Khalf a line\nloss 2.00"


def test_the_eta_is_by_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 160.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    screen = Screen()
    terminal = Terminal(screen)
    terminal.metrics([{"step": 10, "steps": 40, "loss": 2}])
    terminal.metrics([{"step": 20, "steps": 40, "loss": 1}])
    assert screen.getvalue().endswith("20/40  loss 1.00  ETA 2 min 0 s")
    assert "ETA" not in screen.getvalue().split("\r")[0]


@pytest.mark.parametrize(
    "record", [{"step": "x"}, {"loss": 1}, {"step": None, "loss": 1}, {"step": 1, "steps": "many"}]
)
def test_records_of_any_kind_do_no_harm(record: dict[str, Any]) -> None:
    Terminal(Screen()).metrics([record, {"step": 1, "steps": 2, "loss": "nan"}, {"step": 2, "steps": 2, "loss": None}])
