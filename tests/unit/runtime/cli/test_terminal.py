from __future__ import annotations

import io
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Callable

import pytest

from ctrain_runtime.cli import terminal as module
from ctrain_runtime.cli.terminal import SILENCE_SECONDS, Terminal
from ctrain_runtime.run.record import Restart
from ctrain_runtime.schedulers.protocol import Outcome, Status

RECORD = {"step": 412, "steps": 1251, "loss": 5.914, "epoch": 1, "epochs": 90, "images_per_second": 11930.4}
ERASE = "\r\033[K"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """clock(seconds): sets the time."""
    monkeypatch.setattr(module.time, "monotonic", lambda: 0.0)
    return lambda seconds: monkeypatch.setattr(module.time, "monotonic", lambda: seconds)


def test_a_file_gets_plain_lines_and_no_bar() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.show("site      local")
    terminal.submitted("job 7")
    for status in (
        Status("waiting", "Priority"),
        Status("waiting", "Priority"),
        Status("running"),
        Status("ended", "X", Outcome.FAILED),
    ):
        terminal.status(status)
    terminal.ranks(1, 2, "rank")
    terminal.job_log("srun: error: x")
    terminal.output("epoch 1\nhalf a li")
    terminal.metrics([RECORD])
    terminal.output("ne")
    terminal.cancelling("job 7")
    terminal.warn("the disk is full")
    terminal.close()
    assert out.getvalue() == (
        "site      local\njob 7 is queued (Priority)\njob 7 started\njob.log: srun: error: x\n"
        "epoch 1\nhalf a line\ncancelling job 7 ...\nwarning: the disk is full\n"
    )
    assert terminal.step == 412


def lines(*states: Status) -> list[str]:
    """What a file gets for these states."""
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.submitted("job 7")
    for state in states:
        terminal.status(state)
    return out.getvalue().splitlines()


def test_a_job_that_waits() -> None:
    soon = f"{datetime.now():%Y-%m-%d}T05:12:00"
    assert lines(
        Status("waiting", "None"),
        Status("waiting", "Resources"),
        Status("waiting", "Resources", starts_at=soon),
        Status("waiting", "Resources", starts_at="2031-01-02T03:04:05"),
        Status("waiting", "Priority"),
        Status("waiting", "Resources"),
        Status("running"),
    ) == [
        "job 7 is queued",
        "job 7 is queued (Resources)",
        "job 7 is queued (Resources), expected to start 05:12",
        "job 7 is queued (Priority)",
        "job 7 started",
    ]


def test_a_job_that_is_requeued_is_queued_and_started_again() -> None:
    assert (
        lines(Status("waiting"), Status("running"), Status("waiting"), Status("running"))
        == [
            "job 7 is queued",
            "job 7 started",
        ]
        * 2
    )


def test_after_a_restart_the_start_is_shown_again() -> None:
    screen = Screen()
    terminal = Terminal(screen)
    terminal.status(Status("running"))
    terminal.output("epoch 1\n")
    terminal.restarted(Restart(1, "", "rank 1 on gpu01 failed: exit code 3", 3, "the last checkpoint"), 2)
    terminal.ranks(1, 2, "rank")
    terminal.output("epoch 2\n")
    terminal.close()
    line = "rank 1 on gpu01 failed: exit code 3; restarting from the last checkpoint (1 of 2)"
    assert f"epoch 1\n{line}\nstarting: 1/2 ranks up{ERASE}epoch 2\n" in screen.getvalue()


def test_each_note_is_one_line() -> None:
    silent, slow = "Slurm does not answer (x); still trying", "Slurm is slow"
    states = [Status("running", note=note) for note in ("", silent, slow, silent, "")]
    assert lines(*states, Status("ended", note="node n1 failed")) == ["job 7 started", silent, slow, "node n1 failed"]


def test_the_start_moves_on_a_terminal_until_the_first_output() -> None:
    screen = Screen()
    terminal = Terminal(screen)
    for started in (3, 3, 16):
        terminal.ranks(started, 16, "rank")
    terminal.output("epoch 1\n")
    terminal.ranks(16, 16, "rank")
    terminal.close()
    assert screen.getvalue() == (
        f"starting: 3/16 ranks up{ERASE}16 ranks up, waiting for the first output{ERASE}epoch 1\n"
    )


def test_the_start_ends_with_the_first_record() -> None:
    screen = Screen()
    terminal = Terminal(screen)
    terminal.ranks(1, 2, "rank")
    terminal.metrics([{"step": 1}])
    terminal.ranks(2, 2, "rank")
    assert screen.getvalue() == f"starting: 1/2 ranks up{ERASE}"


def test_a_file_is_told_of_silence_once(clock: Callable[[float], None]) -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    for now, started in ((0.0, 1), (50.0, 2), (50.0 + SILENCE_SECONDS - 1, 2)):
        clock(now)
        terminal.ranks(started, 2, "rank")
    assert out.getvalue() == ""
    clock(50.0 + SILENCE_SECONDS)
    terminal.ranks(2, 2, "rank")
    terminal.ranks(2, 2, "rank")
    assert out.getvalue() == "2 ranks up, waiting for the first output\n"


def test_silence_until_the_end_is_not_told_again(clock: Callable[[float], None]) -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.status(Status("running"))
    for now in (0.0, SILENCE_SECONDS):
        clock(now)
        terminal.ranks(2, 2, "rank")
    terminal.status(Status("ended"))
    terminal.ranks(2, 2, "rank")
    assert out.getvalue() == "the job started\n2 ranks up, waiting for the first output\n"


def test_output_in_time_is_no_silence(clock: Callable[[float], None]) -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.ranks(2, 2, "rank")
    terminal.output("x\n")
    clock(99.0)
    terminal.ranks(2, 2, "rank")
    assert out.getvalue() == "x\n"


def test_the_bar_stays_below_the_output_and_goes_at_the_end() -> None:
    screen = Screen()
    terminal = Terminal(screen)
    terminal.metrics([{"step": 1, "loss": 2}])
    terminal.output("epoch 1\n")
    terminal.output("half")
    terminal.metrics([{"step": 2, "loss": 1}])
    terminal.close()
    bar = "step 1  loss 2.00"
    assert screen.getvalue() == f"{bar}{ERASE}epoch 1\n{bar}{ERASE}half\n"


def test_output_after_half_a_line_is_never_erased() -> None:
    """The bar is not drawn beside an unfinished line of rank 0, so taking the bar away must not take that line."""
    screen = Screen()
    terminal = Terminal(screen)
    terminal.metrics([{"step": 1, "loss": 2}])
    terminal.output("half")
    terminal.output(" a line\n")
    assert screen.getvalue() == f"step 1  loss 2.00{ERASE}half a line\nstep 1  loss 2.00"


def test_the_eta_is_by_the_pace_so_far(clock: Callable[[float], None]) -> None:
    screen = Screen()
    terminal = Terminal(screen)
    clock(100.0)
    # Attached late: the records of the past come at once, and say nothing of the pace.
    terminal.metrics([{"step": step, "steps": 40, "loss": 2} for step in range(11)])
    assert "ETA" not in screen.getvalue()
    clock(160.0)
    terminal.metrics([{"step": 20, "steps": 40, "loss": 1}])
    assert screen.getvalue().endswith("20/40  loss 1.00  ETA 2 min 0 s")


@pytest.mark.parametrize(
    "record", [{"step": "x"}, {"loss": 1}, {"step": None, "loss": 1}, {"step": 1, "steps": "many"}, {"step": True}]
)
def test_records_of_any_kind_do_no_harm(record: dict[str, Any]) -> None:
    terminal = Terminal(Screen())
    terminal.metrics([record, {"step": 1, "steps": 2, "loss": "nan"}, {"step": 2, "steps": 2, "loss": None}])
    assert terminal.step == 2


def test_what_the_encoding_lacks_is_replaced() -> None:
    class Latin(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    out = Latin(io.BytesIO(), encoding="latin-1")
    terminal = Terminal(out)
    terminal.output("100%|█| ü \udcff\n")
    terminal.metrics([{"step": 1, "steps": 2, "loss": 1}])
    assert out.buffer.getvalue().decode("latin-1") == "100%|?| ü ?\n##########----------  1/2  loss 1.00"


def tell_everything(terminal: Terminal) -> None:
    terminal.show("site      local")
    terminal.submitted("job 7")
    terminal.status(Status("waiting", "Priority", starts_at="soon", note="x"))
    terminal.ranks(2, 2, "rank")
    terminal.job_log("x")
    terminal.output("half")
    terminal.metrics([RECORD])
    terminal.cancelling("job 7")
    terminal.warn("x")
    terminal.close()


def test_nothing_is_raised_when_the_reader_is_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        terminal = Terminal(out)
        tell_everything(terminal)
        out.write("what is written later goes nowhere, too")
    assert terminal.step == 412


def test_nothing_is_raised_when_the_disk_is_full() -> None:
    with Path("/dev/full").open("w") as out:
        terminal = Terminal(out)
        tell_everything(terminal)
    assert terminal.step == 412


def test_nothing_is_raised_when_the_stream_is_closed() -> None:
    out = io.StringIO()
    out.close()
    tell_everything(Terminal(out))


def test_nodes_whose_commands_start_the_ranks_are_no_ranks() -> None:
    stream = Screen()
    terminal = Terminal(stream)
    terminal.ranks(1, 2, "node")
    assert "starting: 1/2 nodes up" in stream.getvalue()
    terminal.ranks(2, 2, "node")
    assert "2 nodes up, waiting for the first output" in stream.getvalue()
