from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.report.series import BUCKETS, MAX_KEYS, Metrics, read


def written(tmp_path: Path, *records: Any) -> Metrics:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    return read(path)


def test_curves_of_a_run(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        {"step": 1, "steps": 3, "loss": 3, "time": 100.0},
        {"step": 2, "loss": 2, "time": 101.0},
        {"step": 2, "val_accuracy": 0.5},
        {"step": 3, "loss": 1, "time": 102.0},
    )
    assert found.curves["loss"].parts == (((1, 3), (2, 2), (3, 1)),)
    assert found.curves["val_accuracy"].parts == (((2, 0.5),),)
    assert set(found.curves) == {"loss", "val_accuracy"}
    assert (found.first_step, found.last_step, found.first_time) == (1, 3, 100.0)


def test_after_a_restart_a_curve_begins_anew_at_an_earlier_step(tmp_path: Path) -> None:
    found = written(tmp_path, *({"step": step, "loss": 9 - step} for step in (1, 2, 3, 2, 3, 4)))
    assert found.curves["loss"].parts == (((1, 8), (2, 7), (3, 6)), ((2, 7), (3, 6), (4, 5)))


def test_a_million_values_keep_their_extremes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        for step in range(100_000):
            file.write(f'{{"step": {step}, "loss": {99 if step == 77_777 else step % 7}}}\n')
    (points,) = read(path).curves["loss"].parts
    assert len(points) <= 2 * BUCKETS
    assert (77_777, 99) in points
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert {y for _, y in points if y < 99} == {0, 6}


def test_values_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    curve = written(tmp_path, *({"step": n, "loss": v} for n, v in enumerate((1, 2, math.nan, math.inf, 1e308)))).curves
    assert curve["loss"].parts == (((0, 1), (1, 2)),)
    assert (curve["loss"].bad, curve["loss"].bad_from, curve["loss"].count) == (3, 2, 5)


def test_lines_of_any_kind_do_no_harm(tmp_path: Path) -> None:
    deep = "[" * 100_000
    found = written(
        tmp_path, "", "x", "[1]", deep, {"step": "1", "loss": "2"}, {"step": True, "loss": True}, {"loss": 5}
    )
    assert (found.ignored, found.records) == (3, 3)
    assert found.curves["loss"].parts == (((3, 5),),)
    assert written(tmp_path, {"step": -1, "loss": 10**400}, {"step": 1e308, "loss": 1}).curves["loss"].count == 1


def test_without_a_file_there_is_nothing(tmp_path: Path) -> None:
    assert read(tmp_path / "metrics.jsonl") == Metrics()


def test_names_without_end_make_no_curves_without_end(tmp_path: Path) -> None:
    found = written(tmp_path, *({f"loss{number}": 1} for number in range(1000)))
    assert (len(found.curves), found.more_keys) == (MAX_KEYS, True)


@pytest.mark.parametrize("bad", [[1.0], ["x", 1.0], [-1.0, 1.0], [1.0, 2.0, 3.0], "x", {"0": 1}])
def test_the_times_of_ranks(tmp_path: Path, bad: Any) -> None:
    found = written(tmp_path, *({"step": 1, "seconds_by_rank": each} for each in ([1.0, 2.0], bad, [3.0, 4.0])))
    assert found.by_rank == ((2.0, 3.0), (3.0, 4.0))


def test_a_line_that_does_not_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 1}\n{"step": 2, "lo')
    assert read(path).records == 1
