"""Slurm's way to write a time limit: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS (man sbatch, --time)."""

from __future__ import annotations

import re
from typing import Optional

from ctrain_runtime.errors import UsageError

_FORMS = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


def parse_limit(text: str) -> Optional[int]:
    """The limit in whole minutes, rounded up; None for Slurm's "infinite" and "UNLIMITED". Raises UsageError."""
    if text.lower() in ("infinite", "unlimited"):
        return None
    form = _FORMS.fullmatch(text.strip())
    if not form:
        raise UsageError(f"time {text!r} is not a time limit", "Write it as HH:MM:SS, D-HH:MM:SS or minutes")
    first, second, third = (int(form[part]) if form[part] else 0 for part in ("first", "second", "third"))
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
