"""Slurm's format of time limits: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS (man sbatch, --time)."""

from __future__ import annotations

import re
from typing import Optional

from ctrain_runtime.errors import UsageError

LARGEST_PART = 59  # of the minutes of an hour and the seconds of a minute
_FORMS = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


def parse_limit(text: str) -> Optional[int]:
    """The limit in whole minutes, rounded up; None for Slurm's "infinite" and "UNLIMITED". Raises UsageError.

    Minutes and seconds that follow a larger unit end at 59: 90:00 is a limit, 1:99:00 is not.
    """
    if text.lower() in ("infinite", "unlimited"):
        return None
    form = _FORMS.fullmatch(text.strip())
    first, second, third = (int(form[part] or 0) if form else 0 for part in ("first", "second", "third"))
    if not form or max(second, third) > LARGEST_PART:
        raise UsageError(f"invalid time limit {text!r}", "Write it as HH:MM:SS, D-HH:MM:SS or minutes")
    if form["days"]:
        hours, mins, seconds = int(form["days"]) * 24 + first, second, third
    elif form["third"]:
        hours, mins, seconds = first, second, third
    else:
        hours, mins, seconds = 0, first, second
    return hours * 60 + mins + -(-seconds // 60)


def format_limit(total: int) -> str:
    """Minutes as Slurm writes a limit: D-HH:MM:SS, without the days when there are none."""
    days, rest = divmod(total, 24 * 60)
    clock = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{clock}" if days else clock
