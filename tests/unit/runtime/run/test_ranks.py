from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from ctrain_runtime.run import ranks
from ctrain_runtime.run.ranks import Rank


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    return tmp_path


def write(run: Path, **texts: str) -> None:
    for number, text in texts.items():
        (run / "ranks" / number[1:]).write_text(text)


def test_ranks_by_number_and_where_they_ran(run: Path) -> None:
    write(
        run,
        _10="start 110.5 gpu02\nend 120.25 0\n",
        _2="start 101.0 gpu01\n",
        _0="start 100.0 gpu01\nend 119.0 137\n",
    )
    found = ranks.read(run)
    assert found == [
        Rank(0, "gpu01", 100.0, 119.0, 137),
        Rank(2, "gpu01", 101.0),
        Rank(10, "gpu02", 110.5, 120.25, 0),
    ]
    assert ranks.nodes(found) == ["gpu01", "gpu02"]


def test_no_rank_has_started(run: Path) -> None:
    assert ranks.read(run) == []
    assert ranks.first_failure([]) is None
    assert ranks.nodes([]) == []


@pytest.mark.parametrize("cut", ["\nend 119.0 13", "\nend 119.0", "\nen", "\n"])
def test_a_record_that_was_cut_off_is_of_a_rank_that_vanished(run: Path, cut: str) -> None:
    write(run, _0="start 100.0 gpu01" + cut)
    assert ranks.read(run) == [Rank(0, "gpu01", 100.0)]


@pytest.mark.parametrize("cut", ["", "start", "start 100.0", "start 100.0 gpu"])
def test_a_record_without_its_first_line_is_of_no_rank(run: Path, cut: str) -> None:
    """A full disk leaves such files: the rank could not even say where it was."""
    write(run, _0=cut, _1="start 100.0 gpu01\n")
    assert ranks.read(run) == [Rank(1, "gpu01", 100.0)]


def test_the_first_failure_is_the_earliest_not_the_lowest() -> None:
    late, early = Rank(0, "a", 1.0, 9.0, 143), Rank(3, "b", 1.0, 5.0, 1)
    assert ranks.first_failure([late, Rank(1, "a", 1.0, 2.0, 0), early]) is early


def test_a_failure_comes_before_a_rank_that_vanished() -> None:
    vanished, failed = Rank(0, "a", 1.0), Rank(1, "b", 1.0, 5.0, 1)
    assert ranks.first_failure([vanished, failed]) is failed
    assert ranks.first_failure([Rank(1, "b", 1.0, 5.0, 0), vanished]) is vanished
    assert ranks.first_failure([Rank(1, "b", 1.0, 5.0, 0)]) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "vanished (its node failed, or everything there was killed)"),
        (1, "exit code 1"),
        (128, "exit code 128"),
        (255, "exit code 255"),  # sys.exit(-1), not a signal 127
        (137, "signal 9 (killed)"),
        (139, "signal 11 (segmentation fault)"),
        (143, "signal 15 (terminated)"),
        (134, "signal 6 (aborted)"),
        (130, "signal 2 (SIGINT)"),
    ],
)
def test_how_a_rank_ended(code: Optional[int], words: str) -> None:
    assert Rank(0, "gpu01", 1.0, 2.0, code).how() == words
