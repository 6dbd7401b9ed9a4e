"""Runs on this machine whose ranks hang: real processes and the real watch, with the fake engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samples.runs import Bench, ended, wait_for

TWO = ("--ranks-per-node", "2", "--launcher", "env")
# All beat once and wait for a file; then they write on until another one is there.
TRAIN = """
import os, sys, time
from pathlib import Path
rank, run, beat = os.environ["RANK"], Path(os.environ["CTRAIN_RUN_DIR"]), Path(os.environ["CTRAIN_HEARTBEAT"])
beat.write_text("7 step\\n")
print("batch 7 of", rank, flush=True)
if rank == "1" and "leave" in sys.argv:
    sys.exit()
while not (run / "done").exists():
    time.sleep(0.05)
while not (run / "over").exists():
    print("batch 8 of", rank, flush=True)
    time.sleep(0.2)
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.environment["WATCH_AFTER"] = "0.1"
    (tmp_path / "train.py").write_text(TRAIN)
    yield bench
    bench.end()


def hangs(bench: Bench) -> list[dict[str, Any]]:
    path = bench.one / "events.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [event for event in map(json.loads, lines) if event["stage"] == "watch"]


@pytest.mark.parametrize("launcher", ["env", "torchrun"])
def test_a_hang_is_reported_and_that_it_goes_on(bench: Bench, launcher: str) -> None:
    notify = bench.folder / "told"
    command = f"bash -c 'cat >>{notify}'"
    options = ("--ranks-per-node", "2", "--launcher", launcher, "--hang-after", "2s", "--notify", command)
    run = bench.run(*options, "--", "python3", "train.py")
    wait_for(lambda: hangs(bench))
    (event,) = hangs(bench)
    assert event["what"] == "hung" and event["ranks"] == [], event
    one = r"step 7, at train\.py:(9|10) in <module>: .*, last line: batch 7 of"
    every = rf"no sign of life .* \(step\): ranks 0-1 wait \(0: {one} 0; 1: {one} 1\); which rank hung is unknown"
    assert re.fullmatch(every, event["message"]), event
    assert "in <module>" in (bench.one / "stacks/rank1.txt").read_text()
    status, _, _ = (ended(bench.attach(verb="status"))[1], None, None)
    assert f"hang      {event['message']}" in status.splitlines()
    (bench.one / "done").touch()
    wait_for(lambda: len(hangs(bench)) > 1)
    (bench.one / "over").touch()
    code, out, error = ended(run)
    assert (code, error) == (0, ""), out
    assert [event["what"] for event in hangs(bench)][:2] == ["hung", "went on"]
    shown = out.splitlines()
    assert f"hung: {event['message']}" in shown
    assert any(line.startswith("goes on after ") for line in shown), out
    assert f"run one hung: {event['message']}" in notify.read_text().splitlines()
    assert not bench.orphans()


def test_a_rank_that_leaves_while_another_waits(bench: Bench) -> None:
    """The first task's, that the others wait for."""
    bench.folder.joinpath("train.py").write_text(TRAIN.replace('rank == "1"', 'rank == "0"'))
    run = bench.run(*TWO, "--hang-after", "2s", "--", "python3", "train.py", "leave")
    wait_for(lambda: hangs(bench))
    (event,) = hangs(bench)
    assert event.get("ranks") == [0], event
    assert " left with exit code 0; rank 1 on " in event["message"]
    (bench.one / "done").touch()
    (bench.one / "over").touch()
    code, out, _ = ended(run)
    assert code == 0, out
    assert not bench.orphans()


STUCK = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else signal.SIG_DFL)
print("attempt", os.environ.get("CTRAIN_ATTEMPT"), flush=True)
while os.environ.get("CTRAIN_ATTEMPT") != "1" and os.environ["RANK"] == "1":
    time.sleep(0.05)
"""


def test_a_run_that_hangs_is_stopped(bench: Bench) -> None:
    bench.environment["GRACE"] = "1"
    (bench.folder / "train.py").write_text(STUCK)
    code, out, error = ended(
        bench.run(*TWO, "--hang-after", "2s", "--on-hang", "stop", "--", "python3", "train.py", "deaf")
    )
    assert (code, error) == (84, ""), out
    exit_ = bench.record()["exit"]
    assert (exit_["code"], exit_["by"], exit_["ending"]) == (84, "ctrain", "failed")
    assert re.match(
        r"hung: no sign of life for .*: rank 0 on .* left with exit code 0; rank 1 on .* waits", exit_["reason"]
    )
    assert out.splitlines().count(exit_["reason"]) == 2, "when it hangs, and at the end"
    assert not bench.orphans()


def test_a_run_that_hangs_is_restarted(bench: Bench) -> None:
    (bench.folder / "train.py").write_text(STUCK)
    options = (*TWO, "--hang-after", "2s", "--on-hang", "restart", "--restarts", "1")
    code, out, error = ended(bench.run(*options, "--", "python3", "train.py"))
    assert (code, error) == (0, ""), out
    (restart,) = bench.record()["restarts"]
    assert restart["code"] == 84 and restart["reason"].startswith("hung: no sign of life for "), restart
    assert f"{restart['reason']}; restarting from the start, as checkpoint/ is empty (1 of 1)" in out.splitlines(), out
    assert not bench.orphans()


def test_what_restarts_must_allow(bench: Bench) -> None:
    code, _, error = ended(bench.run(*TWO, "--on-hang", "restart", "--", "true"))
    assert code == 64 and "--on-hang restart is for runs with restarts" in error, error


def test_a_short_run_has_no_watch(bench: Bench) -> None:
    bench.environment["WATCH_AFTER"] = "5"
    code, out, error = ended(bench.run(*TWO, "--", "bash", "-c", "true"))
    assert (code, error) == (0, ""), out
    assert not list((bench.one / "watch").iterdir())
    assert not bench.orphans()
