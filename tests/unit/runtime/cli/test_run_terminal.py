"""`ctrain run` and `ctrain attach` on a pseudo-terminal, with the fake engine: the live view, and what it leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from samples.long_mode import LONG
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
# Each rank speaks; the last one fails in the first attempt, once all are up.
SPEAKS = """\
echo "rank $RANK speaks"
[ "$CTRAIN_ATTEMPT" = 0 ] || exit 0
[ "$RANK" = 63 ] || exec sleep 1000
until [ "$(grep -c '"started"' "$CTRAIN_RUN_DIR/nodes/0.jsonl")" = 64 ]; do sleep 0.2; done
exit 3
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


@pytest.mark.skipif(not LONG, reason="at night: 128 processes with an engine and a shell each")
def test_of_64_ranks_the_screen_has_one_and_the_news(bench: Bench, start: Start) -> None:
    many = ("--ranks-per-node", "64", "--launcher", "env", "--restarts", "1")
    running = start(*bench.run_words(), *many, "--", "bash", "-c", SPEAKS, columns=100)
    text = running.wait_for("64 of 64 up")
    text += running.wait_for("failed: exit code 3; restarting from the start, as checkpoint/ is empty (1 of 1)")
    assert re.search(r"rank 63 on \S+ $", text), text
    text += running.wait_for("completed in ")
    assert running.end() == 0
    assert set(re.findall(r"rank [0-9]+ speaks", text)) == {"rank 0 speaks"}
