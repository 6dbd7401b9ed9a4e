"""The curves in a metrics.jsonl of any size, in which programs may write any value: read once, thinned as they come."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.run.follow import PIECE_BYTES, Tail, parse_object

BUCKETS = 400  # of a curve at most, each with its least and its largest value: about as many as a screen shows
MAX_KEYS = 40  # of one run; a program that makes names of values has more
MAX_RANKS = 4096
LARGEST, LARGEST_STEP, LARGEST_SECONDS = 1e300, 1e15, 1e11  # larger values are nonsense
NO_CURVES = {"step", "steps", "epoch", "epochs", "time"}
Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """The values of a key by step. Each of `parts` goes on where steps begin again, as after a restart. `bad`: how many
    values were not finite, the first one at the step `bad_from`; `count`: all."""

    key: str
    parts: tuple[tuple[Point, ...], ...]
    last: Optional[float]
    least: Optional[float]
    largest: Optional[float]
    count: int
    bad: int
    bad_from: float


@dataclass(frozen=True)
class Metrics:
    """All that a run has measured. `by_rank` are the mean and the largest seconds of a step of each rank, () where
    unknown; `first_time` is that of its first record that has one, in seconds since the epoch; `ignored` counts
    lines that are no records, and `more_keys` says that some keys have no curve."""

    curves: dict[str, Curve] = field(default_factory=dict)
    records: int = 0
    ignored: int = 0
    more_keys: bool = False
    first_step: Optional[float] = None
    last_step: Optional[float] = None
    first_time: Optional[float] = None
    by_rank: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Measures:
    """What a program has measured at one step; `time` in seconds since the epoch, None if it has written none yet."""

    step: float
    time: Optional[float]
    values: dict[str, float]


class _Thinned:
    """The least and the largest of so many values in a row each: of twice as many, whenever there are too many rows."""

    def __init__(self) -> None:
        self._rows: list[tuple[Point, Point]] = []
        self._per_row, self._in_last = 1, 0
        self._least = self._largest = (0.0, math.inf)  # of the last row

    def add(self, point: Point) -> None:
        """Called a million times, so it makes nothing but what it keeps."""
        if self._in_last == self._per_row or not self._in_last:
            self._end_row()
            self._least = self._largest = point
        elif point[1] < self._least[1]:
            self._least = point
        elif point[1] > self._largest[1]:
            self._largest = point
        self._in_last += 1

    def points(self) -> tuple[Point, ...]:
        self._end_row()
        return tuple(point for row in self._rows for point in sorted(set(row)))

    def _end_row(self) -> None:
        if self._in_last:
            self._rows.append((self._least, self._largest))
        self._in_last = 0
        if len(self._rows) == BUCKETS:
            self._rows = [_merged(*pair) for pair in zip(self._rows[::2], self._rows[1::2])]
            self._per_row *= 2


def _merged(one: tuple[Point, Point], other: tuple[Point, Point]) -> tuple[Point, Point]:
    least = other[0] if other[0][1] < one[0][1] else one[0]
    return least, other[1] if other[1][1] > one[1][1] else one[1]


class _Growing:
    """A curve that is being read."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.parts: list[_Thinned] = []
        self.step = -math.inf
        self.last: Optional[float] = None
        self.least, self.largest = math.inf, -math.inf
        self.count = self.bad = 0
        self.bad_from = 0.0

    def add(self, step: float, value: float) -> None:
        self.count += 1
        if not -LARGEST < value < LARGEST:
            self.bad_from = self.bad_from if self.bad else step
            self.bad += 1
            return
        if not self.parts or step < self.step:
            self.parts = [*self.parts, _Thinned()][-MAX_KEYS:]
        self.parts[-1].add((step, value))
        self.step, self.last = step, value
        if value < self.least:
            self.least = value
        if value > self.largest:
            self.largest = value

    def curve(self) -> Curve:
        has_any = self.last is not None
        return Curve(
            self.key,
            tuple(part.points() for part in self.parts),
            self.last,
            self.least if has_any else None,
            self.largest if has_any else None,
            self.count,
            self.bad,
            self.bad_from,
        )


class _Ranks:
    """The seconds of a step of each rank, where all records have as many."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._largest: list[float] = []
        self._count = 0

    def add(self, values: Any) -> None:
        each = [number(value) for value in values[:MAX_RANKS]] if isinstance(values, list) else []
        seconds = [value for value in each if value is not None and 0 <= value < LARGEST_SECONDS]
        if len(seconds) < 2 or len(seconds) != len(each) or len(seconds) != len(self._sums or seconds):
            return
        before = self._sums or [0.0] * len(seconds)
        self._sums = [total + value for total, value in zip(before, seconds)]
        self._largest = [max(pair) for pair in zip(self._largest or seconds, seconds)]
        self._count += 1

    def points(self) -> tuple[Point, ...]:
        return tuple((total / self._count, largest) for total, largest in zip(self._sums, self._largest))


class _Place:
    """How far a metrics.jsonl that is being read has come."""

    def __init__(self) -> None:
        self.records = 0
        self.step = 0.0
        self.first_step: Optional[float] = None
        self.time: Optional[float] = None
        self.first_time: Optional[float] = None

    def add(self, record: dict[str, Any]) -> None:
        """The step and the time of a record; of a program that counts no steps, the number of the record."""
        self.records += 1
        own, moment = number(record.get("step")), number(record.get("time"))
        if own is not None and 0 <= own < LARGEST_STEP:
            self.step = own
            self.first_step = own if self.first_step is None else self.first_step
        elif self.first_step is None:
            self.step = float(self.records)
        if moment is not None and 0 < moment < LARGEST_SECONDS:
            self.time = moment
            self.first_time = moment if self.first_time is None else self.first_time


class _Reading:
    """Everything so far of a metrics.jsonl that is being read."""

    def __init__(self) -> None:
        self.growing: dict[str, _Growing] = {}
        self.ranks = _Ranks()
        self.place = _Place()
        self.more_keys = False

    def add(self, record: dict[str, Any]) -> None:
        self.place.add(record)
        if "seconds_by_rank" in record:
            self.ranks.add(record["seconds_by_rank"])
        for key, value in record.items():
            amount = number(value)
            if amount is None or key in NO_CURVES:
                continue
            curve = self.growing.get(key)
            if curve is None:
                if len(self.growing) == MAX_KEYS:
                    self.more_keys = True
                    continue
                curve = self.growing[key] = _Growing(key)
            curve.add(self.place.step, amount)


def read(path: Path) -> Metrics:
    """What is in a metrics.jsonl; nothing if it does not exist."""
    seen, ignored = _Reading(), 0
    for line in _lines(path):
        record = parse_object(line)
        if record is not None:
            seen.add(record)
        elif line.strip():
            ignored += 1
    return Metrics(
        {key: growing.curve() for key, growing in seen.growing.items()},
        seen.place.records,
        ignored,
        seen.more_keys,
        seen.place.first_step,
        None if seen.place.first_step is None else seen.place.step,
        seen.place.first_time,
        seen.ranks.points(),
    )


def measures(path: Path) -> Iterator[Measures]:
    """The numbers of each record in a metrics.jsonl, all of them; none if it does not exist."""
    place = _Place()
    for record in filter(None, map(parse_object, _lines(path))):
        place.add(record)
        amounts = ((key, number(value)) for key, value in record.items() if key not in NO_CURVES)
        values = {key: amount for key, amount in amounts if amount is not None}
        if values:
            yield Measures(place.step, place.time, values)


def number(value: Any) -> Optional[float]:
    """`value` as a float; None for anything else: True, "3" ..."""
    try:
        return float(value) if type(value) in (int, float) else None
    except OverflowError:  # an int too large for a float
        return None


def _lines(path: Path) -> Iterator[str]:
    """Its complete lines; what is no line any more, by its length, is left out."""
    partial = ""
    for piece in Tail(path).pieces():
        *lines, partial = (partial + piece).split("\n")
        yield from lines
        partial = partial if len(partial) < PIECE_BYTES else ""
