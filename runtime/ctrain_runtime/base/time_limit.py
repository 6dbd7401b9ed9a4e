"""Time limits in Slurm's format (minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS: man sbatch, --time), or with
units, as in 90m, 2h, 1d12h."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional, Union

from ctrain_runtime.errors import UsageError

LARGEST_PART = 59  # of the minutes of an hour and the seconds of a minute
_RANGE = re.compile(r"([1-9]\d*)(?:-([1-9]\d*)?)?")
_FORMS = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
_UNITS = re.compile(r"(?=\d)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?")
HINT = "Write it as HH:MM:SS, D-HH:MM:SS or minutes, or as in 90m, 2h, 1d12h"


@dataclass(frozen=True)
class NodeRange:
    """The limit in minutes (None: none) of jobs of `least` to `most` nodes (None: and more)."""

    least: int
    most: Optional[int]
    minutes: Optional[int]

    def holds(self, nodes: int) -> bool:
        return self.least <= nodes and (self.most is None or nodes <= self.most)

    def __str__(self) -> str:
        if self.most == self.least:
            return f"{self.least} node{'' if self.least == 1 else 's'}"
        return f"{self.least} nodes and more" if self.most is None else f"{self.least} to {self.most} nodes"


def parse_ranges(limits: Union[str, Mapping[str, str]]) -> tuple[NodeRange, ...]:
    """The ranges of nodes with a limit each, written as "10-24", "5" or "100-", by their size; one limit for all jobs
    is one range. Raises UsageError, also for a limit of no time."""
    if isinstance(limits, str):
        return (NodeRange(1, None, _of_jobs(limits)),)
    ranges = []
    if not limits:
        raise UsageError("time_limit has no range of nodes", 'Write {"1-": "1:00:00"}, or one limit for all jobs')
    for text, limit in limits.items():
        form = _RANGE.fullmatch(text.strip())
        least = int(form[1]) if form else 0
        most = None if text.strip().endswith("-") else int(form[2] or least) if form else 0
        if not form or (most is not None and most < least):
            raise UsageError(f"invalid range of nodes {text!r}", "Write it as 10-24, 5, or 100- for 100 and more")
        ranges.append(NodeRange(least, most, _of_jobs(limit)))
    ranges.sort(key=lambda one: one.least)
    for one, following in zip(ranges, ranges[1:]):
        if one.most is None or one.most >= following.least:
            raise UsageError(f"ranges of nodes overlap: {one} and {following}", "Give each number of nodes one limit")
    return tuple(ranges)


def _of_jobs(text: str) -> Optional[int]:
    minutes = parse_limit(text)
    if minutes == 0:
        raise UsageError(f"invalid time limit {text!r}: no job fits", HINT)
    return minutes


def parse_limit(text: str) -> Optional[int]:
    """The limit in whole minutes, rounded up; None for Slurm's "infinite" and "UNLIMITED". Raises UsageError.

    In Slurm's format, minutes and seconds that follow a larger unit end at 59: 90:00 is a limit, 1:99:00 is not.
    """
    if text.lower() in ("infinite", "unlimited"):
        return None
    if units := _UNITS.fullmatch(text.strip()):
        days, hours, mins = (int(part or 0) for part in units.groups())
        return (days * 24 + hours) * 60 + mins
    form = _FORMS.fullmatch(text.strip())
    first, second, third = (int(form[part] or 0) if form else 0 for part in ("first", "second", "third"))
    if not form or max(second, third) > LARGEST_PART:
        raise UsageError(f"invalid time limit {text!r}", HINT)
    if form["days"]:
        hours, mins, seconds = int(form["days"]) * 24 + first, second, third
    elif form["third"]:
        hours, mins, seconds = first, second, third
    else:
        hours, mins, seconds = 0, first, second
    return hours * 60 + mins + -(-seconds // 60)


def parse_seconds(text: str) -> int:
    """A duration in seconds, as in 90s, 10m, 2h. Raises UsageError, also for none at all."""
    form = re.fullmatch(r"([0-9]{1,6})([smh])", text)
    seconds = int(form[1]) * {"s": 1, "m": 60, "h": 3600}[form[2]] if form else 0
    if not seconds:
        raise UsageError(f"invalid duration {text!r}", "Write it as in 90s, 10m or 2h")
    return seconds


def format_limit(total: int) -> str:
    """Minutes as Slurm writes a limit: D-HH:MM:SS, without the days when there are none."""
    days, rest = divmod(total, 24 * 60)
    clock = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{clock}" if days else clock
