"""`ctrain run` and `ctrain attach` on a pseudo-terminal, with the fake engine: the live view, and what it leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from samples.runs import Bench
from samples.screen import shown
from samples.terminal import Terminal

PROGRAM = """\
echo '{"step": 3, "steps": 9, "loss": 2.5}' >"$CTRAIN_RUN_DIR/metrics.jsonl"
echo begun
trap 'kill $!; exit 7' TERM
sleep 1000 &
wait $!
"""
Start = Callable[..., Terminal]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.end()


@pytest.fixture
def start(bench: Bench) -> Iterator[Start]:
    terminals: list[Terminal] = []

    def start(*arguments: str, columns: int = 40) -> Terminal:
        terminals.append(Terminal(bench.argv(*arguments), bench.folder, {**bench.environment, "TERM": "xterm"}))
        terminals[-1].resize(24, columns)
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def test_the_view_moves_below_the_output_and_ctrl_c_leaves_the_terminal_in_order(bench: Bench, start: Start) -> None:
    running = start(*bench.run_words(), "--", "bash", "-c", PROGRAM)
    before = running.wait_for("3/9  loss 2.50")
    attached = start("attach", "one", "--site", "local", "--runs", str(bench.runs), columns=100)
    attached.wait_for("3/9  loss 2.50")
    attached.resize(24, 40)
    attached.wait_for("running")
    attached.type("\x03")
    attached.wait_for("one goes on; cancel it with: ctrain cancel one")
    assert attached.end() == 129
    running.type("\x03")
    before += "3/9  loss 2.50" + running.wait_for("run directory: ")
    running.wait_for("look at it: ctrain report one")
    running.end()
    lines = shown(re.sub(r"\x1b\[[0-9;?]*m", "", before), 40)
    assert not [line for line in lines if line.startswith(("one  running", "3/9", "1 of 1 up"))], lines
    assert "begun" in lines
    assert not re.search(r"\x1b\[\?", before)  # no mode of the terminal was changed
