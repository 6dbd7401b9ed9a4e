from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console

from ctrain_runtime.cli.live_view import View, by_rank, paint, rows, table
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.run.record import Restart
from ctrain_runtime.schedulers.protocol import Status
from samples.plans import a_plan
from samples.screen import Screen, shown

METRICS = {"step": 412, "steps": 1251, "loss": 5.914, "epoch": 1, "epochs": 90, "images_per_second": 11930.4}
VIEW = View("resnet50-1121-0412", "rank", 8, 64, limit=240, state="running", begun=1000.0, started=64, metrics=METRICS)
NEWS = tuple(f"14:2{number}  rank {number} on gpu3{number} failed: signal 9 (killed)" for number in range(5))


def screen(view: View, columns: int = 100) -> list[str]:
    """What rich's console shows of a view."""
    console = Console(record=True, width=columns, file=io.StringIO(), markup=False, highlight=False)
    console.print(table(rows(view, 1100.0, columns), columns))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_64_ranks_are_three_lines_and_the_news() -> None:
    metrics = {**METRICS, "seconds": 0.31, "memory": 31e9, "seconds_by_rank": [0.3] * 63 + [0.44]}
    view = dataclasses.replace(VIEW, metrics=metrics, left=9060.0, restarts=1, news=NEWS)
    assert screen(view) == [
        "run       resnet50-1121-0412  running 1 min 40 s of 04:00:00, 1 restart",
        "progress  epoch 1/90  ██████░░░░░░░░░░░░░░  412/1251  loss 5.91  11,930 images/s  ETA 2 h 31 min",
        "ranks     64 of 64 up on 8 nodes  step 300 ms, 300 ms to 440 ms (rank 63)  GPU memory 31.0 GB",
        "news      14:22  rank 2 on gpu32 failed: signal 9 (killed)",
        "          14:23  rank 3 on gpu33 failed: signal 9 (killed)",
        "          14:24  rank 4 on gpu34 failed: signal 9 (killed)",
    ]


def test_on_40_columns_lines_are_cut_and_never_wrapped() -> None:
    shown_lines = screen(dataclasses.replace(VIEW, left=60.0, news=NEWS[:1]), 40)
    assert shown_lines == [
        "resnet50-1121-0412  running 1 min 40 s …",
        "epoch 1/90  412/1251  ETA 1 min 0 s",
        "64 of 64 up on 8 nodes",
        "14:20  rank 0 on gpu30 failed: signal 9…",
    ]


def test_before_the_start_and_without_metrics_only_what_is_known_is_shown() -> None:
    queued = dataclasses.replace(VIEW, state="queued (Priority)", begun=None, metrics={}, started=0)
    assert screen(queued) == ["run       resnet50-1121-0412  queued (Priority)", "ranks     64 on 8 nodes"]
    starting = dataclasses.replace(queued, state="running", begun=1090.0, started=3, limit=None)
    assert screen(starting) == [
        "run       resnet50-1121-0412  running 10 s",
        "ranks     3 of 64 up on 8 nodes",
    ]


@pytest.mark.parametrize("columns", [1, 5, 39, 60, 500])
def test_any_width_will_do(columns: int) -> None:
    view = dataclasses.replace(VIEW, run="実" * 300, news=("[red]not markup[/red] :smile: \033[2J\n\tx" * 9,))
    for line in paint(rows(view, 1100.0, columns), columns):
        assert len(shown(line, 1000)[0]) <= columns
        assert "\033[2J" not in line


@pytest.mark.parametrize(
    "each", ["x", [], [1.0, "2"], [1.0, None], [True, 1.0], [-1.0, 1.0], [float("nan"), 1.0], [1e300, 1], {"0": 1}]
)
def test_times_of_ranks_of_any_kind_do_no_harm(each: Any) -> None:
    assert by_rank({"seconds_by_rank": each}) == []
    assert screen(dataclasses.replace(VIEW, metrics={**METRICS, "seconds_by_rank": each, "memory": "many"}))


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert any("\033[32m" in line for line in paint(rows(VIEW, 0, 80), 80))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not any("\033[3" in line for line in paint(rows(VIEW, 0, 80), 80))


def watched(**options: Any) -> tuple[Screen, Terminal]:
    """A terminal on which a run is watched."""
    screen = Screen()
    terminal = Terminal(screen, **options)
    terminal.submitted("job 7", a_plan())
    terminal.status(Status("running"))
    return screen, terminal


@pytest.fixture(autouse=True)
def no_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def test_output_is_above_the_view_and_news_stay() -> None:
    screen, terminal = watched()
    terminal.output("epoch 1\n")
    terminal.metrics([METRICS])
    terminal.restarted(Restart(1, "2026-11-21T14:22:00+00:00", "rank 1 failed", 3, "the last checkpoint"), 2)
    terminal.output("epoch 2\nepoch 3\n")
    seen = shown(screen.getvalue(), 119)
    news = "rank 1 failed; restarting from the last checkpoint (1 of 2)"
    assert seen[:5] == ["job 7 started", "epoch 1", news, "epoch 2", "epoch 3"]
    assert seen[5].startswith("run       ")
    assert ", 1 restart" in seen[5]
    assert seen[-1].endswith(f"  {news}")
    terminal.close()
    assert shown(screen.getvalue(), 119) == seen[:5]


def test_times_of_all_ranks_stay_until_newer_ones_come() -> None:
    screen, terminal = watched()
    for step, more in enumerate(({"seconds_by_rank": [0.3, 0.44]}, {"seconds": 0.1}), 1):
        terminal.metrics([{**METRICS, "step": step, **more}])
        assert any("300 ms to 440 ms (rank 1)" in line for line in shown(screen.getvalue(), 119))
    terminal.metrics([{**METRICS, "step": 3, "seconds_by_rank": [0.5, 0.2]}, {**METRICS, "step": 4}])
    assert any("200 ms to 500 ms (rank 0)" in line for line in shown(screen.getvalue(), 119))
    terminal.close()


def test_plain_and_dumb_terminals_get_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, terminal = watched(plain=True)
    terminal.metrics([METRICS])
    assert plain.getvalue() == "job 7 started\n"
    monkeypatch.setenv("TERM", "dumb")
    dumb, terminal = watched()
    terminal.metrics([METRICS])
    assert dumb.getvalue() == "job 7 started\n"


def test_without_rich_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctrain_runtime.cli.terminal.find_spec", lambda _: None)
    screen, terminal = watched()
    terminal.metrics([METRICS])
    bar = "epoch 1/90  ██████░░░░░░░░░░░░░░  412/1251  loss 5.91  11,930 images/s"
    assert shown(screen.getvalue(), 119) == ["job 7 started", bar]
