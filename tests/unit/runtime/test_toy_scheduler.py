"""A back end is one file: the toy runs jobs end to end, and nothing else in ctrain knows of it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.errors import SiteError
from samples.runs import Bench, ended, wait_for
from samples.toy_scheduler import SCHEDULER, Toy

FOUR = ("--nodes", "2", "--ranks-per-node", "2")
PRINT_RANK = 'echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, node $NODE_RANK"'


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, "toy")
    yield bench
    bench.end()


def test_the_toy_is_one_short_file_that_is_named_once(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkout / "tests/samples/toy_scheduler.py"
    assert len(path.read_text().splitlines()) < 150
    assert not [path for path in (checkout / "runtime").rglob("*.py") if "toy" in path.read_text().lower()]
    with pytest.raises(SiteError, match="unknown scheduler 'toy'"):
        schedulers.get("toy")
    monkeypatch.setitem(schedulers.MODULES, "toy", "samples.toy_scheduler")
    assert isinstance(schedulers.get("toy"), Toy)
    assert SCHEDULER.name("3") == "toy 3"


@pytest.mark.parametrize("launcher", ["env", "torchrun"])
def test_a_run_from_start_to_end(bench: Bench, launcher: str) -> None:
    code, out, error = ended(bench.run(*FOUR, "--launcher", launcher, "--", "bash", "-c", PRINT_RANK))
    assert (code, error) == (0, "")
    assert out.splitlines()[2] == f"where     2 x toys: 1 core per rank; 4 ranks, launcher {launcher}; limit 00:10:00"
    assert out.splitlines()[-1] == f"run directory: {bench.one}"
    for rank in range(4):
        assert bench.log(rank) == f"rank {rank} of 4, local {rank % 2} of 2, node {rank // 2}\n"
    assert sorted(path.name for path in bench.one.glob("nodes/*")) == ["0.jsonl", "1.jsonl"]
    record = bench.record()
    assert (record["world_size"], record["launcher"], record["scheduler"]) == (4, launcher, "toy")
    assert record["exit"] == {"code": 0, "reason": "completed", "by": "program", "ending": "completed"}
    (attempt,) = record["attempts"]
    assert (attempt["job_id"], attempt["name"], attempt["outcome"]) == ("1", "toy 1", "completed")


def test_ranks_that_never_started_are_counted_as_ranks(bench: Bench) -> None:
    """A torchrun that starts too few of them, in both of the two tasks, is noticed by each rank that is there."""
    (bench.folder / "bin/python").write_text('#!/bin/bash\nshift 9\nRANK=0 LOCAL_RANK=0 WORLD_SIZE=1 exec "$@"\n')
    code, _, _ = ended(bench.run(*FOUR, "--launcher", "torchrun", "--", "bash", "-c", "true"))
    assert code == 72
    ended_as = bench.record()["exit"]
    assert ended_as["by"] == "ctrain"
    assert ended_as["reason"].endswith("torchrun started 1 ranks, but the plan has 4")


def test_submit_attach_runs_and_cancel(bench: Bench) -> None:
    go = bench.folder / "go"
    wait = f"while ! [ -e {go} ]; do sleep 0.05; done; echo went"
    code, out, _ = ended(bench.run(*FOUR, "--launcher", "env", "--", "bash", "-c", wait, verb="submit"))
    assert code == 0
    assert out.splitlines()[-1] == f"submitted as toy 1; watch it with: ctrain attach {bench.one}"
    where = ("--site", bench.site, "--runs", str(bench.runs))
    out = ended(bench.ctrain("runs", *where))[1]
    assert out.splitlines()[1].split()[:4] == ["one", "running", "toy", "1"]
    go.touch()
    code, out, _ = ended(bench.attach())
    assert (code, out.splitlines()[-1], bench.log(0)) == (0, f"run directory: {bench.one}", "went\n")
    assert bench.record()["exit"]["reason"] == "completed"
    out = ended(bench.ctrain("runs", *where))[1]
    assert out.splitlines()[1].split()[1] == "completed"


def test_a_scheduler_that_does_not_answer_does_not_end_a_run(bench: Bench) -> None:
    code, out, _ = ended(bench.run("--launcher", "env", "--scheduler-option=--mute", "--", "bash", "-c", "sleep 2"))
    assert code == 0
    assert out.splitlines().count("the toy does not answer") <= 1
    assert bench.record()["exit"]["reason"] == "completed"


def test_a_cancel_that_fails_is_tried_again(bench: Bench) -> None:
    program = ("bash", "-c", 'touch "$CTRAIN_RUN_DIR/up"; sleep 60')
    run = bench.run("--launcher", "env", "--scheduler-option=--clumsy", "--", *program)
    wait_for(bench.one / "up")
    os.kill(run.pid, signal.SIGINT)
    code, out, error = ended(run)
    assert (code, error) == (130, "")
    assert out.splitlines().count("warning: the toy dropped the request; trying again") == 1
    assert bench.ending()["reason"] == "cancelled"
    assert not bench.orphans()


def test_json_of_submit_and_attach_is_the_record(bench: Bench) -> None:
    code, out, error = ended(bench.run("--json", "--launcher", "env", "--", "true", verb="submit"))
    assert (code, error) == (0, "")
    assert json.loads(out)["attempts"][0]["name"] == "toy 1"
    code, out, _ = ended(bench.attach("--json"))
    assert (code, json.loads(out)) == (0, bench.record())
