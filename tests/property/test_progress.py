"""Laws of the bar: whatever a program writes into metrics.jsonl, it is one line that is true."""

from __future__ import annotations

import io
import json
import re
from typing import Any, Optional

from hypothesis import example, given
from hypothesis import strategies as st

from ctrain_runtime.cli.progress import Pace, progress
from ctrain_runtime.cli.terminal import Terminal

KEYS = ("epoch", "epochs", "step", "steps", "loss", "images_per_second")
values = (
    st.integers(-3, 20)
    | st.integers()
    | st.floats()
    | st.sampled_from([10**400, -(10**5000), True, None, "3", "x" * 10**5, [1], {"a": 1}])
)
records = st.dictionaries(st.sampled_from(KEYS), values)


@given(records, st.none() | st.floats())
@example({"images_per_second": 1e262}, 1e136)
def test_a_record_is_one_line_that_is_true(record: dict[str, Any], left: Optional[float]) -> None:
    line = progress(record, left)
    assert line.isprintable()
    assert len(line) < 200
    for part, whole in re.findall(r"(\d+)/(\d+)", line):
        assert int(part) <= int(whole)
    assert "ETA -" not in line
    assert "ETA nan" not in line


@given(st.lists(st.tuples(records, st.floats(0, 1e6)), max_size=8))
def test_time_left_is_never_negative(updates: list[tuple[dict[str, Any], float]]) -> None:
    pace, now = Pace(), 0.0
    for record, passed in updates:
        now += passed
        left = pace.update(record, now)
        assert left is None or left >= 0


@example(0.0625)
@given(st.floats(-1e300, 1e300))
def test_a_loss_keeps_its_size(loss: float) -> None:
    shown = float(progress({"loss": loss}, None).removeprefix("loss "))
    assert abs(shown - loss) <= abs(loss) * 0.006


@given(st.lists(st.lists(records, max_size=3), max_size=4), st.lists(st.text(), max_size=4))
def test_a_terminal_takes_everything(batches: list[list[dict[str, Any]]], texts: list[str]) -> None:
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding="ascii")
    terminal = Terminal(out)
    for batch in batches:
        terminal.metrics(batch)
    for text in texts:
        terminal.output(text)
        terminal.ranks(1, 2, "rank")
        terminal.warn(text)
    terminal.close()
    out.flush()
    assert written.getvalue().isascii()


@given(records)
def test_what_json_gives_back_is_shown_the_same(record: dict[str, Any]) -> None:
    try:
        again = json.loads(json.dumps(record))
    except ValueError:  # an int too large to be written
        return
    assert progress(again, None) == progress(record, None)
