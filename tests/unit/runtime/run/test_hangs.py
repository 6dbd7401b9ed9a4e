"""What users and records tell of hangs, by events of the judge."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.run import events, hangs
from ctrain_runtime.run.conclude import conclude
from ctrain_runtime.run.ranks import from_events
from ctrain_runtime.schedulers.protocol import Outcome, Status
from samples.runs import StandIn, submitted, write_events, write_ranks

HUNG: dict[str, Any] = {"stage": "watch", "what": "hung", "message": "no sign of life for 6 min", "ranks": [1]}
ON: dict[str, Any] = {"stage": "watch", "what": "went on", "message": "after 7 min"}
OVER = Status("ended", "TIMEOUT", Outcome.TIMEOUT)


@pytest.mark.parametrize(
    ("written", "lines", "standing"),
    [
        ([], [], ""),
        ([HUNG], ["hung: no sign of life for 6 min"], HUNG["message"]),
        ([HUNG, ON], ["hung: no sign of life for 6 min", "goes on after 7 min"], ""),
        ([HUNG, {"stage": "watch", "what": "failed", "message": "x"}], ["hung: no sign of life for 6 min"], ""),
        ([HUNG, {"what": "restarted", "attempt": 1}], ["hung: no sign of life for 6 min"], ""),
    ],
)
def test_lines(tmp_path: Path, written: list[dict[str, Any]], lines: list[str], standing: str) -> None:
    write_events(tmp_path, *written)
    assert hangs.lines(events.read_job_events(tmp_path)) == lines
    assert hangs.standing(tmp_path) == standing


def test_a_time_limit_that_ends_a_run_which_hangs(tmp_path: Path) -> None:
    run = submitted(tmp_path / "run", StandIn(OVER))
    write_ranks(run.path, None, None)
    write_events(run.path, HUNG)
    ended = conclude(run, OVER).record.exit
    assert ended is not None
    assert ended.reason == "time limit reached (TIMEOUT); it hung: no sign of life for 6 min"


@pytest.mark.parametrize(("after", "tells"), [(2000.0, True), (200.0, False)])
def test_a_time_limit_that_ends_a_run_some_ranks_had_left(tmp_path: Path, after: float, *, tells: bool) -> None:
    run = submitted(tmp_path / "run", StandIn(OVER))
    write_ranks(run.path, 0, None)  # at 110 s
    write_events(run.path, {"what": "signalled", "signal": "TERM", "time": after})
    write_events(run.path, {"what": "signalled", "signal": "TERM", "time": after, "rank": 1}, node=0)
    ended = conclude(run, OVER).record.exit
    assert ended is not None
    assert ("; rank 0 on gpu00 had left long before with exit code 0" in ended.reason) == tells, ended.reason


def test_ranks_that_all_left_waited_for_nobody(tmp_path: Path) -> None:
    run = submitted(tmp_path / "run", StandIn(OVER))
    write_ranks(run.path, 0, 0)
    every = events.read_node_events(run.path)
    ranks = from_events(every)
    assert hangs.left_before(ranks, None, 5000.0) == []
    assert hangs.left_before([ranks[0], dataclasses.replace(ranks[1], exit_code=None)], None, 5000.0) == [ranks[0]]
