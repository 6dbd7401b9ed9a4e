"""When a run counts as hung, and what is written about it: a table of runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from ctrain_runtime.payload import judge as program
from ctrain_runtime.payload.judge import STALE_SECONDS, Rank, Reader, duration, judge, names, unwatched

NOW = 10_000.0


def rank(number: int, **parts: Any) -> Rank:
    """A rank that started long ago, on a node of two, whose last sign was 400 s ago."""
    known = {"node": f"gpu0{number // 2}", "started": 1000.0, "status": "quiet", "quiet_since": NOW - 400}
    return Rank(number, **{**known, "section": "step", "since": NOW - 400, **parts})


def left(number: int, code: int = 0, ago: float = 350.0) -> Rank:
    return rank(number, ended=NOW - ago, code=code)


def silent(number: int, **parts: Any) -> Rank:
    return rank(number, status="silent", since=0.0, quiet_since=0.0, **parts)


@pytest.mark.parametrize(
    ("ranks", "asked", "message"),
    [
        # one that is alive is enough
        ([rank(0), rank(1), rank(2, status="alive"), rank(3, status="alive")], 0, None),
        ([silent(0), silent(1)], 0, None),  # that nothing was ever seen proves nothing
        ([left(0), left(1)], 0, None),  # the run has ended
        ([left(0, code=3), rank(1)], 0, None),  # it is about to
        (
            [rank(0), rank(1)],
            0,
            "no sign of life for 6 min 40 s (step): ranks 0-1 wait; which rank hung is unknown",
        ),
        (
            [rank(0, line="step 3")],
            0,
            "no sign of life for 6 min 40 s (step): rank 0 on gpu00 waits (last line: step 3)",
        ),
        # nodes without a sign tell nothing, nor against it
        (
            [rank(0), rank(1), silent(2), silent(3)],
            0,
            "no sign of life for 6 min 40 s (step): ranks 0-3 wait; which rank hung is unknown",
        ),
        # heartbeats: rank 2 stopped before the others did
        (
            [rank(0, step=9), rank(1, step=9), rank(2, step=7, since=NOW - 450, line="loading"), rank(3, step=9)],
            0,
            "no sign of life for 6 min 40 s (step): rank 2 on gpu01 hung (step 7, last line: loading);"
            " ranks 0-1, 3 wait (step 9)",
        ),
        # heartbeats are a second apart: that is no difference
        (
            [rank(0, step=9), rank(1, step=7, since=NOW - 401)],
            0,
            "no sign of life for 6 min 40 s (step): ranks 0-1 wait (0: step 9; 1: step 7); which rank hung is unknown",
        ),
        # stacks: the others wait for rank 1, which loads data
        (
            [rank(0, place="train.py:8 in main", waits=True), rank(1, place="data.py:3 in load")],
            0,
            "no sign of life for 6 min 40 s (step): rank 1 on gpu00 hung (at data.py:3 in load);"
            " rank 0 on gpu00 waits (at train.py:8 in main)",
        ),
        (
            [rank(0, place="train.py:8 in main", waits=True), rank(1, place="train.py:8 in main", waits=True)],
            0,
            "no sign of life for 6 min 40 s (step): ranks 0-1 wait (at train.py:8 in main); which rank hung is unknown",
        ),
        # a watch that was killed hides nothing, and what it last saw blames nobody
        (
            [rank(0, step=9), rank(1, step=9), rank(2, step=7, status="unknown"), rank(3, step=7, status="unknown")],
            0,
            "no sign of life for 6 min 40 s (step): ranks 0-1 wait (step 9); nothing is known of ranks 2-3:"
            " no watch looks; which rank hung is unknown",
        ),
        ([rank(0, status="unknown"), rank(1, status="alive")], 0, None),
        ([rank(0, status="unknown")], 0, None),
        # ranks that have left: a real sign, also without any output
        (
            [silent(0), left(1)],
            0,
            "no sign of life for 5 min 50 s: rank 1 on gpu00 left with exit code 0; rank 0 on gpu00 waits",
        ),
        ([silent(0), left(1, ago=200)], 0, None),
        ([silent(0), left(1, ago=700), left(2, ago=200)], 0, None),  # one after the other
        (
            [silent(0), left(1, ago=200)],
            100,
            "no sign of life for 3 min 20 s: rank 1 on gpu00 left with exit code 0; rank 0 on gpu00 waits",
        ),
        (
            [silent(0), silent(1), Rank(2), Rank(3)],
            0,
            "no sign of life for 2 h 30 min: ranks 2-3 never came; ranks 0-1 wait",
        ),
        ([silent(0, started=NOW - 600), Rank(1)], 0, None),  # it may still come
        ([silent(0), silent(1, started=NOW - 600), Rank(2)], 0, None),  # as another one has
        ([Rank(0), Rank(1)], 0, None),
        ([], 0, None),
    ],
)
def test_runs(ranks: list[Rank], asked: float, message: Optional[str]) -> None:
    verdict = judge(ranks, "rank", NOW, asked)
    assert (verdict.message if verdict else None) == message


def test_who_is_to_blame() -> None:
    verdict = judge([rank(0), left(1), left(2)], "rank", NOW)
    assert verdict is not None
    assert (verdict.ranks, verdict.since) == ([1, 2], NOW - 400)


def test_that_nobody_looks() -> None:
    dead = rank(0, status="unknown")
    assert unwatched([dead, left(1)], "rank") == "no watch of rank 0 on gpu00 looks any more"
    assert unwatched([dead, rank(1)], "rank") == unwatched([left(0)], "rank") == unwatched([], "rank") == ""


def test_names_and_durations() -> None:
    assert names([rank(number) for number in (0, 2, 4, 6, 7)], "rank") == "ranks 0, 2, 4 and others (5 in all)"
    assert [duration(seconds) for seconds in (-1, 59, 61, 3700)] == ["0 s", "59 s", "1 min 1 s", "1 h 1 min"]


def test_what_nodes_have_written(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    (tmp_path / "watch").mkdir()
    events = [
        {"what": "started", "rank": 0, "node": "gpu00", "time": 5.0, "attempt": 0},
        {"what": "ended", "rank": 0, "code": 1, "time": 6.0, "attempt": 0},
        {"what": "started", "rank": 0, "node": "gpu00", "time": 7.0, "attempt": 1},
        {"what": "started", "rank": 1, "node": "gpu00", "time": 7.0, "attempt": 1},
        {"what": "ended", "rank": 1, "code": 0, "time": 8.0, "attempt": 1},
        {"what": "started", "rank": 99, "attempt": 1},
    ]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "nodes/0.jsonl").write_text(f'{text}[]\ndamaged\n{{"what": "ended", "ra')
    reader = Reader(str(tmp_path), 2, 3, 1)
    assert not reader.node_0_is_alive(9.0)
    view = {"status": "alive", "looked": 9.0, "since": 7.5, "section": "step", "attempt": 1}
    own = {"rank": 0, "since": 7.5, "step": 3, "section": "step", "line": "so far", "place": "", "waits": False}
    (tmp_path / "watch/0.json").write_text(json.dumps({**view, "ranks": [own]}))
    assert reader.node_0_is_alive(9.0 + STALE_SECONDS)
    assert not reader.node_0_is_alive(10.0 + STALE_SECONDS), "of a watch that was killed"
    assert [one.status for one in reader.ranks(10.0 + STALE_SECONDS)] == ["unknown", "silent", "silent"]
    (tmp_path / "metrics.jsonl").touch()
    os.utime(tmp_path / "metrics.jsonl", (11.0, 11.0))
    assert reader.node_0_is_alive(10.0 + STALE_SECONDS), "its ranks go on"
    first, second, third = reader.ranks(9.0)
    assert (first.runs, first.status, first.step, first.line) == (True, "alive", 3, "so far")
    assert (second.runs, second.code, third) == (False, 0, Rank(2))
    (tmp_path / "watch/0.json").write_text(json.dumps({**view, "attempt": 0, "ranks": [own]}))
    assert not reader.node_0_is_alive(9.0), "of the attempt before"


def test_a_slow_command_of_the_user_delays_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the time to read files counts: else a run that goes on soon after it hung would never be seen to."""
    for name in ("nodes", "watch"):
        (tmp_path / name).mkdir()
    (tmp_path / "nodes/0.jsonl").write_text('{"what": "started", "rank": 0, "node": "gpu00", "time": 5.0}\n')
    own = {"rank": 0, "since": 7.5, "step": 3, "section": "step", "line": "", "place": "", "waits": False}
    view = {"status": "quiet", "looked": 9.0, "since": 7.5, "section": "step", "attempt": 0, "ranks": [own]}
    (tmp_path / "watch/0.json").write_text(json.dumps(view))
    notified: list[bool] = []
    pauses: list[float] = []
    parents = iter([7, 0])
    clock = SimpleNamespace(time=lambda: NOW + 20 * len(notified), sleep=pauses.append)
    monkeypatch.setattr(program, "time", clock)
    monkeypatch.setattr(program.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(program.Report, "_notify", lambda *_: notified.append(True))
    monkeypatch.setattr(program.sys, "argv", ["judge.py", "7", str(tmp_path), "1", "1", "rank", "2", "report", "tell"])
    program.main()
    (event,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert (json.loads(event)["what"], len(notified), pauses) == ("hung", 1, [0.5])
