from __future__ import annotations

from typing import Optional

import pytest

from ctrain_runtime.run import ranks
from ctrain_runtime.run.events import Event
from ctrain_runtime.run.ranks import Rank


def started(rank: int, time: float, node: str = "gpu01") -> Event:
    return Event("started", "run", node, time, rank=rank)


def ended(rank: int, time: float, code: int, node: str = "gpu01") -> Event:
    return Event("ended", "run", node, time, rank=rank, code=code)


def refused(rank: int, time: float, code: int, message: str) -> Event:
    return Event("refused", "run", "gpu01", time, rank=rank, code=code, message=message)


def test_ranks_by_number_and_where_they_ran() -> None:
    found = ranks.from_events(
        [started(10, 110.5, "gpu02"), started(2, 101.0), started(0, 100.0), ended(0, 119.0, 137), ended(10, 120.25, 0)]
    )
    assert found == [Rank(0, "gpu01", 100.0, 119.0, 137), Rank(2, "gpu01", 101.0), Rank(10, "gpu02", 110.5, 120.25, 0)]
    assert ranks.hosts(found) == ["gpu01", "gpu02"]
    assert ranks.started(found) == 3


def test_no_rank_has_started() -> None:
    assert ranks.from_events([Event("started", "before", "gpu01", 1.0)]) == []
    assert ranks.first_failure([]) is None
    assert ranks.hosts([]) == []


def test_a_rank_that_is_refused_never_started_its_program() -> None:
    (rank,) = ranks.from_events([refused(0, 5.0, 72, "srun started 1 ranks, but the plan has 4")])
    assert (rank.exit_code, rank.end, ranks.started([rank])) == (72, 5.0, 0)
    assert rank.exit_description() == "srun started 1 ranks, but the plan has 4"


@pytest.mark.parametrize("reverse", [False, True])
def test_a_check_inside_the_container_refuses_after_the_start(reverse: bool) -> None:
    """The end that the wrapper writes may be seen before the refusal, or after it."""
    last = [refused(0, 5.0, 73, "layers missing"), ended(0, 6.0, 73)]
    (rank,) = ranks.from_events([started(0, 4.0), *(last[::-1] if reverse else last)])
    assert rank == Rank(0, "gpu01", 4.0, 6.0, 73, "layers missing")


def test_the_first_failure_is_the_earliest_not_the_lowest() -> None:
    late, early = Rank(0, "a", 1.0, 9.0, 143), Rank(3, "b", 1.0, 5.0, 1)
    assert ranks.first_failure([late, Rank(1, "a", 1.0, 2.0, 0), early]) is early


@pytest.mark.parametrize(
    ("first", "second", "seconds", "number"),
    [
        (1, 137, 0.5, 1),  # Gloo's connection error is recorded before the end of the rank that was killed
        (1, 137, 1.9, 1),  # on a node whose clock is ahead
        (85, 137, 0.5, 0),  # it has left: mpirun kills the others a second later
        (78, 137, 0.5, 0),
        (1, 137, 10.0, 0),  # killed because it did not end after SIGTERM
        (1, 143, 0.1, 0),  # terminated as one of the others
        (1, 134, 0.1, 0),  # aborts are also answers to lost connections,
        (1, 139, 0.1, 0),  # and programs with threads crash when they end early
    ],
)
def test_a_killed_rank_comes_before_the_errors_of_those_who_lost_it(
    first: int, second: int, seconds: float, number: int
) -> None:
    failed = ranks.first_failure([Rank(0, "a", 1.0, 5.0, first), Rank(1, "b", 1.0, 5.0 + seconds, second)])
    assert failed
    assert failed.number == number


def test_a_failure_comes_before_a_rank_that_vanished() -> None:
    vanished, failed = Rank(0, "a", 1.0), Rank(1, "b", 1.0, 5.0, 1)
    assert ranks.first_failure([vanished, failed]) is failed
    assert ranks.first_failure([Rank(1, "b", 1.0, 5.0, 0), vanished]) is vanished
    assert ranks.first_failure([Rank(1, "b", 1.0, 5.0, 0)]) is None


def test_a_failure_without_a_time_comes_last() -> None:
    """Of a full disk's last line even the time may be missing."""
    unknown, failed = Rank(0, "a", 1.0, None, 1), Rank(1, "b", 1.0, 5.0, 2)
    assert ranks.first_failure([unknown, failed]) is failed


def test_a_rank_that_left_early_with_success() -> None:
    """The others then wait for it in vain, and one of them is the first to fail."""
    failed = Rank(1, "b", 1.0, 60.0, 1)
    assert ranks.ended_before([Rank(0, "a", 1.0, 30.0, 0), Rank(2, "b", 1.0, 20.0, 0), failed], failed) == Rank(
        2, "b", 1.0, 20.0, 0
    )
    assert ranks.ended_before([Rank(0, "a", 1.0, 59.5, 0), failed], failed) is None  # they end together
    assert ranks.ended_before([Rank(0, "a", 1.0, 30.0, 2), failed], failed) is None
    vanished = Rank(1, "b", 1.0)
    assert ranks.ended_before([Rank(0, "a", 1.0, 30.0, 0), vanished], vanished) is not None


def test_what_became_of_the_others() -> None:
    codes = (9, 143, 137, None, 1, 0, 0)
    all_ranks = [Rank(number, "a", 1.0, 2.0, code) for number, code in enumerate(codes)]
    fates = ((3, "stopped"), (1, "failed, too"), (2, "ended with exit code 0"), (1, "never started"))
    assert ranks.fates(all_ranks, all_ranks[0], 8) == fates
    assert ranks.fates(all_ranks[:1], all_ranks[0], 1) == ()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "no exit status (node failed, or all its processes were killed)"),
        (1, "exit code 1"),
        (72, "exit code 72"),
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
    assert Rank(0, "gpu01", 1.0, 2.0, code).exit_description() == words
