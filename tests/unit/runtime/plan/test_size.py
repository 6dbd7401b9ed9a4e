from __future__ import annotations

import pytest

from ctrain_runtime.errors import ResourceError, UsageError
from ctrain_runtime.job import Count
from ctrain_runtime.plan.size import check_capacity, resolve_count


@pytest.mark.parametrize(("count", "least", "value"), [(3, 1, 3), ("auto", 1, 7), (0, 0, 0), (1, 1, 1)])
def test_a_count(count: Count, least: int, value: int) -> None:
    assert resolve_count("--nodes", count, 7, least) == value


@pytest.mark.parametrize(("count", "auto"), [(0, 7), (-3, 7), ("auto", 0)])
def test_a_count_that_is_too_small(count: Count, auto: int) -> None:
    number = auto if count == "auto" else count
    with pytest.raises(UsageError) as caught:
        resolve_count("--nodes", count, auto)
    assert str(caught.value) == f"--nodes must be at least 1, not {number}"


@pytest.mark.parametrize(
    ("available", "complaint"),
    [
        (2, "partition skl has 2 nodes, 3 requested. Largest that fits: --nodes 2"),
        (1, "partition skl has 1 node, 3 requested. Largest that fits: --nodes 1"),
        (0, "partition skl has no nodes, 3 requested. Largest that fits: --nodes 0"),
    ],
)
def test_more_than_there_is(available: int, complaint: str) -> None:
    with pytest.raises(ResourceError) as caught:
        check_capacity("partition skl", "node", available, "--nodes", 3)
    assert str(caught.value) == complaint


def test_what_fits() -> None:
    check_capacity("partition skl", "node", 3, "--nodes", 3)
