from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Optional

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.run import follow
from ctrain_runtime.run import logs as module
from ctrain_runtime.run.logs import Log, LogReader, select
from samples.plans import a_plan


def lines(log: Log, text: str = "", last: Optional[int] = None) -> list[str]:
    reader = LogReader(log, text)
    return [*chain.from_iterable(reader.first(last)), *reader.unfinished()]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(follow, "PIECE_BYTES", 8)  # so that lines and pieces meet in all ways
    (tmp_path / "log").write_text("one\ntwo and more\n\nthree\nfour")
    return tmp_path / "log"


def test_lines_of_a_log(log: Path) -> None:
    everything = ["one", "two and more", "", "three", "four"]
    assert lines(Log(log)) == everything
    for last in range(7):
        assert lines(Log(log), last=last)[-last:] == (everything[-last:] if last else [])[-last:]
    assert lines(Log(log), "e", 2) == ["two and more", "three"]
    assert lines(Log(log, label="[3] "), "four") == ["[3] four"]
    assert lines(Log(log.with_name("nowhere")), last=3) == []


def test_what_is_added_is_read_once(log: Path) -> None:
    reader = LogReader(Log(log))
    assert [*chain.from_iterable(reader.first(1))] == []  # it has no end yet
    with log.open("a") as file:
        file.write(" and a half\nfive\nsi")
    assert [*chain.from_iterable(reader.added())] == ["four and a half", "five"]
    assert reader.unfinished() == ["si"]
    assert reader.unfinished() == []


def test_a_line_without_an_end_is_not_kept_in_memory(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 8)
    log.write_text("x" * 100)
    shown = lines(Log(log))
    assert len(shown) > 5 and "".join(shown) == "x" * 100


def test_a_rank_of_a_log_that_ranks_share(log: Path) -> None:
    log.write_text("[1] a\n[11] b\n[1] c [11]\nno rank\n")
    assert lines(Log(log, "[1] ")) == ["a", "c [11]"]
    assert lines(Log(log, "[1] "), "[11]", 5) == ["c [11]"]
    assert lines(Log(log, "[1] "), last=1) == ["c [11]"]


def test_the_logs_of_ranks(tmp_path: Path) -> None:
    plan = a_plan(run_directory=tmp_path, nodes=2, ranks_per_node=2)
    assert select(plan, [3]) == [Log(tmp_path / "logs/rank3.log")]
    several = [Log(tmp_path / f"logs/rank{rank}.log", label=f"[{rank}] ") for rank in (2, 3)]
    assert select(plan, [2, 3]) == several
    with pytest.raises(UsageError, match=r"has 4 ranks, from 0 on: no rank 4$"):
        select(plan, [0, 4])


def test_above_256_ranks_those_of_a_node_share_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctrain_runtime.base.run_files.MAX_RANK_LOGS", 3)
    plan = a_plan(run_directory=tmp_path, nodes=2, ranks_per_node=2)
    shared = tmp_path / "logs/node1.log"
    assert select(plan, [3]) == [Log(shared, "[3] ")]
    assert select(plan, [2, 3]) == [Log(shared)]
    zero = Log(tmp_path / "logs/rank0.log", label="[0] ")
    assert select(plan, range(4)) == [zero, Log(tmp_path / "logs/node0.log"), Log(shared)]
