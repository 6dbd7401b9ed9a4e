"""Formats tables, sizes, durations and names of users, the same in every verb."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Sequence
from datetime import datetime
from typing import Optional


def pluralize(number: int, noun: str) -> str:
    """As in 1 rank, 4 ranks."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_size(total: float) -> str:
    """Bytes as in 9.6 GB (powers of 1000, as in `ls --si`)."""
    amount = total
    for unit in ("B", "kB", "MB", "GB"):
        if round(amount) < 1000:
            return f"{amount:.0f} {unit}" if amount >= 100 or unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def format_duration(seconds: float) -> str:
    """As in 4.2 s, 2 min 13 s, 3 h 4 min, 2 d."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    total = round(seconds)  # rounded before division: no "1 min 60 s"
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    if total < 86400:
        return f"{total // 3600} h {total % 3600 // 60} min"
    return f"{total // 86400} d"


def format_seconds(seconds: float) -> str:
    """As in 12.3 ms, 27.93 s; longer ones as format_duration."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{significant(seconds)} s" if seconds < 100 else format_duration(seconds)


def significant(number: float) -> str:
    """About three significant digits, as in 5.91, 0.123, 0.0012, 1.2e-05; also nan and inf."""
    if number == 0 or not 0.1 <= abs(number) < 1000:
        return f"{number:.3g}"
    return f"{number:.2f}" if abs(number) >= 1 else f"{number:.3f}"


def clock_time(moment: str) -> str:
    """An ISO 8601 time without its seconds, and without its date if that is today."""
    try:
        parsed = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return parsed.strftime("%H:%M" if parsed.date() == datetime.now().date() else "%Y-%m-%d %H:%M")


def user_name(uid: int) -> str:
    """The name of a user; "user 1001" without an account here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def group_name(gid: int) -> str:
    """The name of a group; its number if it has none here."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def one_line(text: str) -> str:
    """`text` without what moves a terminal's cursor or changes its colours: others may have written it."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, widest: Optional[int] = None) -> str:
    """Rows in aligned columns, separated by two spaces; a cell wider than `widest` moves only the rest of its row."""
    lines = [list(map(one_line, line)) for line in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    widths = [width if widest is None else min(width, widest) for width in widths]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)
