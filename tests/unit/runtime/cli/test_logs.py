from __future__ import annotations

import time
from pathlib import Path
from typing import Callable

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Outcome, Status
from samples.runs import StandIn, submitted, write_end, write_ranks

Out = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run on two nodes with two ranks each, which goes on."""
    scheduler = StandIn()
    run = submitted(tmp_path / "ctrain-runs/one", scheduler, nodes=2, ranks_per_node=2)
    monkeypatch.setattr(schedulers, "get", lambda _: scheduler)
    for rank in range(4):
        (run.path / f"logs/rank{rank}.log").write_text("".join(f"{word} of {rank}\n" for word in ("a", "b", "c")))
    write_ranks(run.path, None, None, None, None)
    return run


def logs(*arguments: str) -> int:
    return main(RUNTIME_VERBS, ["logs", "--site", "local", *arguments])


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ((), ["a of 0", "b of 0", "c of 0"]),
        (("--rank", "3", "--tail", "1"), ["c of 3"]),
        (("--node", "1", "-n", "1"), ["[2] c of 2", "[3] c of 3"]),
        (("--node", "gpu00", "--grep", "b of"), ["[0] b of 0", "[1] b of 1"]),
        (("--all", "--tail", "1"), [f"[{rank}] c of {rank}" for rank in range(4)]),
        (("--job",), ["srun: error"]),
        (("--tail", "0"), []),
    ],
)
def test_which_lines_are_shown(run: Run, options: tuple[str, ...], shown: list[str], capsys: Out) -> None:
    (run.path / "logs/job.log").write_text("srun: error\n")
    assert logs("last", *options) == 0
    assert capsys.readouterr() == ("".join(f"{line}\n" for line in shown), "")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--rank", "4"), "one has 4 ranks, from 0 on: no rank 4\n"),
        (("--node", "gpu7"), "one has no node gpu7. Nodes: 0 to 1; gpu00, gpu01\n"),
        (("--node", "2"), "one has no node 2. Nodes: 0 to 1; gpu00, gpu01\n"),
        (("--tail", "-1"), "argument -n/--tail: must be a number of lines, not '-1'. See: ctrain logs --help\n"),
        (("--rank", "1", "--all"), "argument --all: not allowed with argument --rank. See: ctrain logs --help\n"),
    ],
)
def test_what_is_refused(run: Run, options: tuple[str, ...], complaint: str, capsys: Out) -> None:
    assert run.path.exists()
    assert logs("one", *options) == 64
    assert capsys.readouterr() == ("", f"ctrain: {complaint}")


def test_a_rank_that_has_written_nothing(run: Run, capsys: Out) -> None:
    (run.path / "logs/rank0.log").unlink()
    assert logs("one") == 0
    assert capsys.readouterr() == ("", f"nothing written yet: {run.path}/logs/rank0.log\n")


def test_following_ends_with_the_run(run: Run, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(text: str, rank: int) -> None:
        with (run.path / f"logs/rank{rank}.log").open("a") as log:
            log.write(text)

    def end() -> None:
        write("the end", 1)
        write_end(run.path, 0)

    steps: list[Callable[[], None]] = [lambda: write("d of 0\nhal", 0), lambda: write("f\n", 0), end]
    monkeypatch.setattr(time, "sleep", lambda _: steps.pop(0)())
    assert logs("one", "--node", "0", "-f", "--tail", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["[0] c of 0", "[1] c of 1", "[0] d of 0", "[0] half", "[1] the end"]
    assert logs("one", "-f", "--grep", "half") == 0
    assert capsys.readouterr().out == "half\n"


def test_following_ends_when_the_scheduler_says_so(run: Run, capsys: Out) -> None:
    assert isinstance(run.scheduler, StandIn)
    run.scheduler.statuses = [Status("ended", outcome=Outcome.NODE_FAILURE)]
    assert logs("one", "-f", "-n", "1") == 0
    assert capsys.readouterr().out == "c of 0\n"
