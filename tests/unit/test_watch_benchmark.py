"""benchmarks/watch.py: how it computes, and a short run of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from samples.benchmarks import load


@pytest.fixture(scope="module")
def watch() -> ModuleType:
    return load("watch")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark sets variables of a run in its own process, and the module keeps its files."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def steps(watch: ModuleType, seconds: list[float], calls: float = 0.0) -> list[object]:
    return [watch.Step(second, calls) for second in seconds]


def test_the_medians_are_compared(watch: ModuleType) -> None:
    result = watch.compare(steps(watch, [0.005, 0.005, 0.9]), steps(watch, [0.0051, 0.0051, 0.005], 0.00001))
    assert (result["step_ms"], result["watched_step_ms"], result["calls_us"]) == (5, 5.1, 10)
    assert result["share"] == pytest.approx(0.02)


def test_what_the_median_does_not_see_counts(watch: ModuleType) -> None:
    watched = [watch.Step(0.005, 0.0), watch.Step(0.005, 0.0), watch.Step(0.0055, 0.0006)]
    assert watch.compare(steps(watch, [0.005] * 3), watched)["share"] == pytest.approx(0.04)


def test_the_table_has_the_share_and_its_limit(watch: ModuleType) -> None:
    result = watch.compare(steps(watch, [0.005] * 3), steps(watch, [0.00501] * 3, 0.00001))
    load = {"watched_runs": 200, "calls_first_minute": 9, "calls_per_minute": 2, "controller_calls_per_second": 6.7}
    *_, share, one, all_runs = watch.table({**result, **load}).splitlines()
    assert share == "share of a step: 0.20% (limit 1%)"
    assert one == "one watch asks the scheduler 9 times in the first minute, later 2 times a minute"
    assert all_runs == "200 watched runs: 6.7 questions a second"


def test_a_watch_asks_less_and_less_often(watch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WATCHED_MINUTES", 12)
    load = watch.controller_load(200)
    assert load["calls_first_minute"] > 2 * load["calls_per_minute"] >= 1
    assert load["controller_calls_per_second"] == round(200 * load["calls_per_minute"] / 60, 1)


@pytest.mark.parametrize(("extra", "code"), [(0.0, 0), (0.0002, 1)])
def test_a_run_writes_metrics_and_ends_with_the_verdict(
    watch: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    extra: float,
    code: int,
) -> None:
    monkeypatch.setattr(watch.ctrain_program, "_metrics", None)
    monkeypatch.setattr(watch.ctrain_program, "_heartbeat", None)
    monkeypatch.setattr(watch, "calibrate", lambda _: lambda: None)
    monkeypatch.setattr(watch, "WARM_UP", 1)
    verdict = {"step_ms": 5.0, "watched_step_ms": 5.0, "calls_us": 1.0, "calls_median_us": 1.0, "limit": 0.01}
    nothing = dict.fromkeys(("calls_first_minute", "calls_per_minute", "controller_calls_per_second"), 0)
    monkeypatch.setattr(watch, "controller_load", lambda runs: {"watched_runs": runs, **nothing})
    monkeypatch.setattr(watch, "compare", lambda plain, _: {**verdict, "share": extra / 0.005, "n": len(plain)})
    monkeypatch.setattr(sys, "argv", ["watch.py", "--steps", "3", "--directory", str(tmp_path), "--json"])
    assert watch.main() == code
    *_, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["n"] == 3
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments", [["--steps", "0"], ["--watched-runs", "0"], ["--milliseconds", "0"], ["--directory", "/nowhere"]]
)
def test_wrong_arguments_are_one_line(
    watch: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["watch.py", *arguments])
    with pytest.raises(SystemExit) as end:
        watch.main()
    assert end.value.code == 2
    assert "watch.py: error: --" in capsys.readouterr().err
