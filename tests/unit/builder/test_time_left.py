from __future__ import annotations

import pytest

from ctrain_builder.cli.time_left import TimeLeft
from ctrain_builder.progress import StepName

BASE, UPPER, TESTS = StepName("layer", "base"), StepName("layer", "upper"), StepName("test")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in its only element."""
    now = [1000.0]
    monkeypatch.setattr("ctrain_builder.cli.time_left.time.monotonic", lambda: now[0])
    return now


def test_without_expectations_only_the_past_is_known(clock: list[float]) -> None:
    left = TimeLeft()
    clock[0] += 65
    assert left.describe() == "1 min 5 s elapsed"


def test_a_running_step_counts_down_and_an_ended_one_not_at_all(clock: list[float]) -> None:
    left = TimeLeft()
    left.expect({BASE: 60, UPPER: 40, TESTS: 20})
    assert left.describe() == "0.0 s elapsed, about 2 min 0 s left"
    left.begin(BASE)
    clock[0] += 15
    assert left.describe() == "15 s elapsed, about 1 min 45 s left"
    clock[0] += 45
    left.end(BASE)
    assert left.describe() == "1 min 0 s elapsed, about 1 min 0 s left"


def test_what_has_ended_tells_the_pace_of_this_machine(clock: list[float]) -> None:
    left = TimeLeft()
    left.expect({BASE: 60, UPPER: 40})
    left.begin(BASE)
    clock[0] += 90
    left.end(BASE)
    assert left.describe() == "1 min 30 s elapsed, about 1 min 0 s left"


def test_a_step_of_a_moment_tells_no_pace(clock: list[float]) -> None:
    left = TimeLeft()
    left.expect({BASE: 1, UPPER: 40})
    left.begin(BASE)
    clock[0] += 8
    left.end(BASE)
    assert left.describe().endswith("about 40 s left")


def test_a_step_that_was_not_expected_changes_nothing(clock: list[float]) -> None:
    left = TimeLeft()
    left.expect({UPPER: 40})
    left.begin(BASE)
    clock[0] += 90
    left.end(BASE)
    assert left.describe().endswith("about 40 s left")


def test_a_step_that_takes_longer_is_not_hidden(clock: list[float]) -> None:
    left = TimeLeft()
    left.expect({BASE: 60, UPPER: 40})
    left.begin(BASE)
    clock[0] += 61
    assert left.describe().endswith("at least 40 s left")


def test_all_tests_are_one_step(clock: list[float]) -> None:
    left = TimeLeft()
    left.expect({TESTS: 20})
    for _ in range(2):
        left.begin(TESTS)
        clock[0] += 5
        left.end(TESTS)
    assert left.describe() == "10 s elapsed, about 10 s left"
