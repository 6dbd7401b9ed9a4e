"""What the watch of a node sees of its ranks' files, and how long it lets them be silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.payload.watch import Files, Silence, Watch


@pytest.mark.parametrize(
    ("signs", "asked", "now", "status"),
    [
        ([], 0, 90000, "silent"),  # it may be a silent program
        ([], 60, 59, "alive"),
        ([], 60, 61, "quiet"),
        ([(10, "")], 0, 1000, "alive"),  # its first step may be long
        ([(10, "")], 0, 1300, "quiet"),
        ([(10, "step")], 0, 300, "alive"),
        ([(10, "step")], 0, 320, "quiet"),
        ([(10, "step"), (110, "step")], 0, 1100, "alive"),  # ten times the longest silence
        ([(10, "step"), (110, "step"), (120, "step")], 0, 1100, "alive"),  # whenever it was
        ([(10, "step"), (110, "step")], 0, 1200, "quiet"),
        ([(10, "step"), (110, "step")], 60, 171, "quiet"),  # what is asked for holds
        ([(10, "step"), (20, "checkpoint")], 0, 1200, "alive"),
        ([(10, "step"), (20, "evaluation")], 0, 1300, "quiet"),
        ([(10, "step"), (20, "polishing")], 0, 400, "quiet"),  # a section of the program's own
        ([(second, "") for second in range(10, 100, 10)], 0, 500, "quiet"),  # at work, as far as its output shows
    ],
)
def test_silence(signs: list[tuple[float, str]], asked: float, now: float, status: str) -> None:
    silence = Silence(0.0, asked)
    for second, section in signs:
        assert silence.look(second, True, section) == "alive"
    assert silence.look(now, False, "") == status


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in ("logs", "nodes", "beats"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_the_signs_of_a_node(run: Path) -> None:
    files = Files(str(run), "1", str(run / "beats"))
    watch = Watch(files, [2, 3], 100.0, 0.0)
    (run / "logs/rank2.log").touch()
    (run / "logs/rank3.log").write_text("\n--- attempt 1 ---\n")
    assert watch.look(10.0) and watch.status == "alive"
    assert not watch.look(20.0), "nothing has changed"
    assert watch.look(101.0) and watch.status == "quiet", "the mark of an attempt is no sign"
    (run / "beats/3").write_text("12 checkpoint\n")
    assert watch.look(120.0) and watch.status == "alive"
    (run / "logs/rank2.log").write_text("\x1b[1mepoch 1\n\n")
    assert not watch.look(130.0)
    report = watch.report()
    assert (report["status"], report["since"], report["section"]) == ("alive", 130.0, "first step")
    assert report["ranks"] == [
        {"rank": 2, "since": 130.0, "step": None, "section": "", "line": "[1mepoch 1", "place": "", "waits": False},
        {"rank": 3, "since": 120.0, "step": 12, "section": "checkpoint", "line": "", "place": "", "waits": False},
    ]


def test_that_ranks_are_alive_is_reported_again(run: Path) -> None:
    """Else nobody could tell a watch that was killed from one that sees no change."""
    watch = Watch(Files(str(run), "1", str(run / "beats")), [2], 1000.0, 0.0)
    log = run / "logs/rank2.log"
    reported = []
    for second in range(100, 1000, 100):
        log.write_text(f"{log.read_text() if log.exists() else ''}step\n")
        if watch.look(float(second)):
            reported.append(watch.report()["looked"])
    assert reported == [100.0, 400.0, 700.0]
    assert [watch.look(second) for second in (1800.0, 3000.0, 4000.0)] == [True, True, False], "once that it is quiet"


def test_a_log_that_ranks_share(run: Path) -> None:
    (run / "logs/node1.log").write_text("[2] two\n[3] three\n[2] \n[2] more\n")
    files = Files(str(run), "1", str(run / "beats"))
    assert [files.last_line(rank) for rank in (2, 3, 4)] == ["more", "three", ""]


def test_metrics_are_a_sign_of_rank_0(run: Path) -> None:
    watch = Watch(Files(str(run), "0", str(run / "beats")), [0, 1], 0.0, 0.0)
    watch.look(1.0)
    assert watch.status == "silent"
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    watch.look(2.0)
    assert (watch.status, watch.report()["section"]) == ("alive", "step")


def test_a_heartbeat_that_is_not_ours(run: Path) -> None:
    files = Files(str(run), "0", str(run / "beats"))
    (run / "beats/0").write_bytes(b"\xff\xfe nonsense\n")
    assert files.look(0).step is None
    (run / "beats/0").write_text("0 step\nnotes of its own")
    assert (files.look(0).step, files.look(0).section) == (0, "first step")
    (run / "beats/0").write_text("")
    assert (files.look(0).step, files.look(0).section) == (None, "")


def test_when_the_ranks_have_ended(run: Path) -> None:
    (run / "nodes/0.jsonl").write_text(
        '{"what": "ended", "rank": 0, "attempt": 1}\n{"what": "ended", "rank": 1}\nx\n{"what": "ended", "rank"'
    )
    files = Files(str(run), "0", str(run / "beats"))
    assert (files.have_ended([0], 1), files.have_ended([0, 1], 1), files.have_ended([1], 0)) == (True, False, True)
