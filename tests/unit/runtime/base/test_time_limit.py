from __future__ import annotations

from typing import Optional

import pytest

from ctrain_runtime.base import time_limit
from ctrain_runtime.errors import UsageError


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("30", 30),
        ("30:00", 30),
        ("30:01", 31),
        ("90", 90),
        ("90:00", 90),
        ("1:59:59", 120),
        ("0:00:30", 1),
        ("1:00:00", 60),
        ("48:00:00", 2880),
        ("2-0", 2880),
        ("2-00:30", 2910),
        ("2-00:00:00", 2880),
        ("2-01:02:03", 2943),
        ("0", 0),
        (" 30 ", 30),
        ("infinite", None),
        ("UNLIMITED", None),
        ("1h", 60),
        ("90m", 90),
        ("90min", 90),
        ("2d", 2880),
        ("1d12h", 2160),
        ("1h30m", 90),
    ],
)
def test_every_form(text: str, minutes: Optional[int]) -> None:
    assert time_limit.parse_limit(text) == minutes


NO_FORM = ("", "h", "30m1h", "1h30", "1.5h", "2 h", "1:2:3:4", "-1", "1-", "1.5", "tomorrow", "1:00:00\n2", "n/a")
TOO_LARGE = ("1:99:00", "1:00:60", "90:60", "1-00:60", "1-00:00:99")


@pytest.mark.parametrize("text", [*NO_FORM, *TOO_LARGE])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^invalid time limit .*\. Write it as HH:MM:SS, D-HH:MM:SS or minutes, or "):
        time_limit.parse_limit(text)


@pytest.mark.parametrize(("minutes", "text"), [(1, "00:01:00"), (60, "01:00:00"), (2880, "2-00:00:00")])
def test_as_slurm_writes_it(minutes: int, text: str) -> None:
    assert time_limit.format_limit(minutes) == text


def test_limits_by_nodes() -> None:
    ranges = time_limit.parse_ranges({"25-99": "6:00:00", "10-24": "3:00:00", "5": "30", "100-": "UNLIMITED"})
    assert [(one.least, one.most, one.minutes, str(one)) for one in ranges] == [
        (5, 5, 30, "5 nodes"),
        (10, 24, 180, "10 to 24 nodes"),
        (25, 99, 360, "25 to 99 nodes"),
        (100, None, None, "100 nodes and more"),
    ]
    assert [one.holds(24) for one in ranges] == [False, True, False, False]
    assert ranges[-1].holds(10_000)
    assert time_limit.parse_ranges("1:00:00") == (time_limit.NodeRange(1, None, 60),)


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        ({"10-9": "1:00"}, "invalid range of nodes '10-9'"),
        ({"0-9": "1:00"}, "invalid range of nodes '0-9'"),
        ({"-9": "1:00"}, "invalid range of nodes '-9'"),
        ({"many": "1:00"}, "invalid range of nodes 'many'"),
        ({"": "1:00"}, "invalid range of nodes ''"),
        ({"1-10": "1:00", "10-20": "2:00"}, "ranges of nodes overlap: 1 to 10 nodes and 10 to 20 nodes"),
        ({"1-": "1:00", "10-20": "2:00"}, "ranges of nodes overlap: 1 nodes and more and 10 to 20 nodes"),
        ({"1-5": "soon"}, "invalid time limit 'soon'"),
    ],
)
def test_limits_by_nodes_that_are_wrong(limits: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError) as raised:
        time_limit.parse_ranges(limits)
    assert raised.value.message == complaint
