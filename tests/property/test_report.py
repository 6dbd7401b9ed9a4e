"""Laws of reports: whatever a program writes into metrics.jsonl, the page is well-formed, and no text of it is code."""

from __future__ import annotations

import json
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ctrain_runtime.report import chart, series
from ctrain_runtime.report.chart import Line
from ctrain_runtime.report.html import element

KEYS = ("step", "steps", "epoch", "time", "loss", "val_accuracy", "images_per_second", "seconds_by_rank", "<b>&\"'")
numbers = st.integers(-3, 20) | st.integers() | st.floats()
values = numbers | st.lists(numbers, max_size=4) | st.sampled_from([10**400, True, None, "3", {"a": 1}])
records = st.dictionaries(st.sampled_from(KEYS), values)


def read(lines: str) -> series.Metrics:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_text(lines, encoding="utf-8")
        return series.read(path)


@given(st.lists(records, max_size=12))
@example([{"step": 0, "loss": -1e300}, {"step": 1, "loss": 1e300}, {"step": 10**15 - 1, "loss": 5e-324}])
def test_curves_of_any_records_are_inside_their_drawing(written: list[dict[str, Any]]) -> None:
    found = read("".join(f"{json.dumps(each)}\n" for each in written))
    assert (found.records, found.ignored) == (len(written), 0)
    for key, curve in found.curves.items():
        for part in curve.parts:
            steps = [x for x, _ in part]
            assert steps == sorted(steps)
        drawn = chart.chart(key, [Line(key, curve.parts, 0)], from_zero=True)
        if not curve.parts:
            assert drawn == ""
            continue
        for line in ET.fromstring(drawn).iter("polyline"):  # noqa: S314  # made here
            for place in (line.get("points") or "").split():
                x, y = map(float, place.split(","))
                assert 0 <= x <= chart.WIDTH
                assert 0 <= y <= chart.HEIGHT


@given(st.text(), st.text())
def test_any_text_is_text(text: str, attribute: str) -> None:
    found = ET.fromstring(element("p", text, title=attribute))  # noqa: S314  # made here
    assert len(found) == 0
    assert len(found.text or "") == len(text)


@given(st.text())
def test_any_lines_can_be_read(lines: str) -> None:
    assert read(lines).records <= lines.count("\n")
