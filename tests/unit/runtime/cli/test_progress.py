from __future__ import annotations

from typing import Any, Optional

import pytest

from ctrain_runtime.cli.progress import ASCII_BLOCKS, LARGEST, Pace, last_with_loss, last_words, progress, whole

RECORD = {"step": 412, "steps": 1251, "loss": 5.914, "epoch": 1, "epochs": 90, "images_per_second": 11930.4}


@pytest.mark.parametrize(
    ("record", "left", "line"),
    [
        (RECORD, 9060.0, "epoch 1/90  ██████░░░░░░░░░░░░░░  412/1251  loss 5.91  11,930 images/s  ETA 2 h 31 min"),
        ({"step": 3, "loss": 1}, None, "step 3  loss 1.00"),
        ({"step": 3, "steps": 3, "loss": 0.5}, 0.0, "████████████████████  3/3  loss 0.500"),
        ({"step": 9, "steps": 3, "loss": 0.5}, -4.0, "step 9  loss 0.500"),
        ({"step": 0, "steps": 0, "loss": 0.0012}, None, "step 0  loss 0.0012"),
        ({"epoch": 4, "epochs": 3, "loss": 1.2e-05}, None, "epoch 3/3  loss 1.2e-05"),
        ({"epoch": True, "epochs": 3, "step": "1", "steps": 3, "loss": False}, None, ""),
        ({"epoch": 1, "epochs": 0, "step": -1, "steps": 2.0, "loss": "nan"}, None, ""),
        ({"step": 1, "steps": True, "loss": float("nan")}, float("nan"), "step 1  loss nan"),
        ({"loss": float("-inf"), "images_per_second": float("inf")}, float("inf"), "loss -inf"),
        ({"loss": 10**400, "step": 10**5000, "images_per_second": 0.25}, None, "0.250 images/s"),
        ({"images_per_second": -3}, None, ""),
        ({"step": 3, "loss": 1, "tokens_per_second": 11930.4}, None, "step 3  loss 1.00  11,930 tokens/s"),
        ({"images_per_second": 2, "tokens_per_second": 9.5}, None, "2.00 images/s  9.50 tokens/s"),
        ({"tokens_per_second": "fast"}, None, ""),
        ({}, None, ""),
    ],
)
def test_progress(record: dict[str, Any], left: Optional[float], line: str) -> None:
    assert progress(record, left) == line


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (86, "epoch 1/90  ██████░░░░░░░░░░░░░░  412/1251  loss 5.91  11,930 images/s  ETA 2 h 31 min"),
        (76, "epoch 1/90  ███░░░░░░░  412/1251  loss 5.91  11,930 images/s  ETA 2 h 31 min"),
        (68, "epoch 1/90  412/1251  loss 5.91  11,930 images/s  ETA 2 h 31 min"),
        (60, "epoch 1/90  ███░░░░░░░░  412/1251  loss 5.91  ETA 2 h 31 min"),
        (30, "epoch 1/90  412/1251  ETA 2 h 31 min"),
    ],
)
def test_a_narrow_terminal_has_a_shorter_bar(columns: int, line: str) -> None:
    assert progress(RECORD, 9060.0, columns=columns) == line


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (RECORD, "epoch 1/90, step 412/1251, loss 5.91, 11,930 images/s"),
        ({"step": 9, "steps": 3, "loss": 0.5}, "step 9, loss 0.500"),
        ({"step": 0, "steps": 0}, "step 0"),
        ({"step": "1", "loss": False}, ""),
        ({}, ""),
    ],
)
def test_last_words(record: dict[str, Any], words: str) -> None:
    assert last_words(record) == words


def test_the_last_record_with_a_step_and_a_loss() -> None:
    """Programs write accuracies and the like only now and then."""
    record = {"step": 2, "loss": 1.0}
    assert last_with_loss([{"step": 1, "loss": 2.0}, record, {"step": 2, "accuracy": 0.5}, {"loss": 3.0}]) is record
    assert last_with_loss([{"step": -1, "loss": 2.0}]) is None


def test_a_bar_for_an_encoding_without_blocks() -> None:
    assert progress({"step": 1, "steps": 4}, None, ASCII_BLOCKS) == "#####---------------  1/4"


@pytest.mark.parametrize(
    ("value", "expected"), [(3, 3), (0, 0), (True, None), (-1, None), (3.0, None), ("3", None), (LARGEST + 1, None)]
)
def test_whole_numbers(value: Any, expected: Optional[int]) -> None:
    assert whole(value) == expected


def seconds_left(*steps: tuple[float, Any], total: Any = 40) -> Optional[float]:
    """What is left after the given (time, step)."""
    pace, left = Pace(), None
    for now, step in steps:
        left = pace.update({"step": step, "steps": total}, now)
    return left


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([(100.0, 10)], None),
        ([(100.0, 10), (160.0, 20)], 120.0),
        ([(100.0, 10), (160.0, 20), (161.0, "x")], None),
        ([(0.0, 400), (10.0, 410)], None),  # beyond the total
        ([(0.0, 10), (9.0, 40)], 0.0),
        ([(0.0, 30), (9.0, 2)], None),  # requeued, and resumed from an earlier step
        ([(0.0, 30), (9.0, 2), (19.0, 12)], 28.0),
    ],
)
def test_the_time_left_is_by_the_pace_so_far(steps: list[tuple[float, Any]], left: Optional[float]) -> None:
    assert seconds_left(*steps) == left


def test_a_resumed_run_is_measured_from_its_own_first_step() -> None:
    assert seconds_left((0.0, 400), (10.0, 410), total=500) == 90.0


@pytest.mark.parametrize("total", [None, True, "40", -1, 0])
def test_without_a_total_nothing_is_known_to_be_left(total: Any) -> None:
    assert seconds_left((0.0, 1), (1.0, 2), total=total) is None
