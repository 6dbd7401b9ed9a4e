from __future__ import annotations

from datetime import datetime

import pytest

from ctrain_runtime.base import text


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0.0 s"),
        (4.24, "4.2 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.7, "1 min 0 s"),
        (119.6, "2 min 0 s"),
        (133, "2 min 13 s"),
        (3599.9, "1 h 0 min"),
        (11040, "3 h 4 min"),
        (200000, "2 d"),
    ],
)
def test_durations(seconds: float, expected: str) -> None:
    assert text.format_duration(seconds) == expected


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_940, "99.9 kB"),
        (999_600, "1.0 MB"),
        (621_879_296, "622 MB"),
        (9_600_000_000, "9.6 GB"),
        (12_345_678_901_234, "12.3 TB"),
    ],
)
def test_sizes(total: int, expected: str) -> None:
    assert text.format_size(total) == expected


def test_counts() -> None:
    assert [text.pluralize(number, "rank") for number in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


def test_a_table_is_aligned_and_has_no_trailing_blanks() -> None:
    assert text.table(("a", "long", "c"), [("xyz", "1", ""), ("", "22", "333")]) == (
        "a    long  c\nxyz  1\n     22    333"
    )
    assert text.table(("a", "b"), []) == "a  b"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0"),
        (5.914, "5.91"),
        (-1, "-1.00"),
        (59.127, "59.13"),
        (0.5, "0.500"),
        (0.0012, "0.0012"),
        (0.00123456, "0.00123"),
        (1.2e-05, "1.2e-05"),
        (123456, "1.23e+05"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_significant_digits(number: float, expected: str) -> None:
    assert text.significant(number) == expected


def test_clock_times() -> None:
    today = datetime.now().date().isoformat()
    assert text.clock_time(f"{today}T05:12:09") == "05:12"
    assert text.clock_time("2031-01-02T05:12:09") == "2031-01-02 05:12"
    assert text.clock_time("soon") == "soon"


def test_what_others_have_written_moves_no_cursor() -> None:
    evil = "\x1b[2J\x1b]0;t\x07a\nb\x9b1m"
    assert text.one_line(evil) == " [2J ]0;t a b 1m"
    assert text.table(("x",), [(evil,)]) == "x\n [2J ]0;t a b 1m"
