from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Callable

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.run import conclude
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Status
from samples.runs import StandIn, submitted, write_end, write_ranks

Out = pytest.CaptureFixture[str]


@pytest.fixture
def scheduler() -> StandIn:
    return StandIn()


@pytest.fixture
def two(tmp_path: Path, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    a, b = (submitted(tmp_path / "ctrain-runs" / name, scheduler, ranks_per_node=1) for name in "ab")
    monkeypatch.setattr(schedulers, "get", lambda _: scheduler)
    monkeypatch.setattr(conclude, "OUTCOME_TIMEOUT_SECONDS", 0.0)  # for a last word, which the stand-in does not have
    return a, b


def wait(*arguments: str) -> int:
    return main(RUNTIME_VERBS, ["wait", "--site", "local", *arguments])


def end(run: Run, code: int) -> None:
    write_ranks(run.path, code)
    write_end(run.path, code)


def test_it_returns_when_all_have_ended(two: tuple[Run, Run], capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = two
    steps: list[Callable[[], None]] = [lambda: end(b, 3), lambda: None, lambda: end(a, 0)]
    monkeypatch.setattr(time, "sleep", lambda _: steps.pop(0)())
    assert wait("a", "b", "a") == 3
    assert capsys.readouterr().out.splitlines() == [
        "b  failed (3) after 21 s: rank 0 on gpu00 failed first: exit code 3",
        "a  completed after 21 s",
    ]
    assert wait("a") == 0
    assert wait("a", "b", "--json") == 3
    assert [run["exit"]["code"] for run in json.loads(capsys.readouterr().out.partition("\n")[2])["runs"]] == [0, 3]


def test_the_code_is_of_the_first_that_is_not_complete(two: tuple[Run, Run]) -> None:
    for run, code in zip(two, (4, 5)):
        end(run, code)
    assert (wait("b", "a"), wait("a", "b")) == (5, 4)


def test_what_nobody_knows_is_not_waited_for(two: tuple[Run, Run], scheduler: StandIn, capsys: Out) -> None:
    """Nor is it taken for complete, where its files say that it has ended and its cluster is another."""
    scheduler.statuses = [Status("unknown", note="its job belongs to cluster other")]
    assert wait("a") == 72
    write_end(two[0].path, 1)
    write_ranks(two[0].path, 1)
    assert wait("a") == 72
    assert capsys.readouterr().err == "ctrain: its job belongs to cluster other\n" * 2


def test_a_run_that_is_not_there(two: tuple[Run, Run], capsys: Out) -> None:
    assert two
    assert wait("a", "c") == 71
    assert "run 'c' not found" in capsys.readouterr().err
