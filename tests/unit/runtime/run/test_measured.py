from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.run.measured import Measured, measure


def written(folder: Path, *lines: Any) -> Measured:
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return measure(folder / "metrics.jsonl")


def test_the_median_rate_without_the_first_third_and_the_most_memory(tmp_path: Path) -> None:
    rates = [1, 2, 50, 10, 1000, 12, 9]
    lines = [{"step": step, "tokens_per_second": rate, "memory": 900 - step} for step, rate in enumerate(rates)]
    assert written(tmp_path, *lines) == Measured(12.0, 900)
    assert written(tmp_path, {"step": 1}, {"memory": 5}) == Measured(None, 5)


@pytest.mark.parametrize("value", ["fast", None, True, -1, 0, 1e30, 10**400, float("nan"), float("inf"), [3], {}])
def test_values_that_are_no_measurement_are_left_out(tmp_path: Path, value: Any) -> None:
    assert written(tmp_path, {"tokens_per_second": value, "memory": value}) == Measured()
    both = written(tmp_path, {"tokens_per_second": 7, "memory": 8}, {"tokens_per_second": value, "memory": value}, 3)
    assert both == Measured(7.0, 8)


def test_a_program_that_wrote_nothing(tmp_path: Path) -> None:
    assert measure(tmp_path / "metrics.jsonl") == Measured()
