"""The progress bar of a run, from the records of metrics.jsonl, in which programs may write any value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ctrain_runtime.base.text import format_duration, significant

BAR_COLUMNS, MIN_BAR_COLUMNS = 20, 5
GAP = "  "
WIDE = 1000  # columns: no limit
BLOCKS, ASCII_BLOCKS = "█░", "#-"  # done, remaining; ASCII for encodings that lack the others
LARGEST = 10**15  # of steps, epochs and rates; larger values are nonsense, and Python refuses to print some
RATES = ("images", "tokens")  # keys without _per_second
LONGEST_SECONDS = 10 * 365 * 86400.0  # of an ETA


def progress(record: Mapping[str, Any], left: Optional[float], blocks: str = BLOCKS, columns: int = WIDE) -> str:
    """One line for a record; missing values, and those of a wrong type, are left out.

    `left`: the remaining seconds. To fit into `columns`, the bar gets shorter, then is left out, and then measures are,
    the last one first.
    """
    epoch, count, measures = _epoch(record), _count(record), _measures(record)
    eta = f"ETA {format_duration(left)}" if left is not None and 0 < left <= LONGEST_SECONDS else ""
    while measures and len(_join(epoch, count, *measures, eta)) > columns:
        measures.pop()
    columns_left = columns - len(_join(epoch, count, *measures, eta)) - len(GAP)
    return _join(epoch, _bar(record, blocks, min(columns_left, BAR_COLUMNS)), count, *measures, eta)


def _join(*parts: str) -> str:
    return GAP.join(part for part in parts if part)


def last_words(record: Mapping[str, Any]) -> str:
    """The same without a bar, for a run that has ended; "" if the record holds nothing of it."""
    step, steps = whole(record.get("step")), whole(record.get("steps"))
    at = "" if step is None else f"step {step}/{steps}" if steps and step <= steps else f"step {step}"
    return ", ".join(part for part in (_epoch(record), at, *_measures(record)) if part)


def last_with_loss(records: Sequence[Mapping[str, Any]]) -> Optional[Mapping[str, Any]]:
    """The last record that shows where a training is; others hold what is known only now and then."""
    shown = (record for record in reversed(records) if "loss" in record and whole(record.get("step")) is not None)
    return next(shown, None)


class Pace:
    """The speed of a run, to estimate its remaining time."""

    def __init__(self) -> None:
        self.step: Optional[int] = None  # the last one
        self._begin = (0.0, 0)  # (seconds, step) from which the pace is measured

    def update(self, record: Mapping[str, Any], now: float) -> Optional[float]:
        """Add the newest record that has a step; returns the remaining seconds at the pace so far, None if unknown.

        The first step may be any number: a resumed run does not begin at 0. A lower step than the last restarts the
        measurement.
        """
        step, steps = whole(record.get("step")), whole(record.get("steps"))
        if step is None:
            return None
        if self.step is None or step < self.step:
            self._begin = (now, step)
        self.step = step
        seconds, done = now - self._begin[0], step - self._begin[1]
        if done == 0 or steps is None or step > steps:
            return None
        return seconds / done * (steps - step)


def whole(value: Any) -> Optional[int]:
    """`value` if it is a valid number of steps; None for True, "3" ..."""
    return value if type(value) is int and 0 <= value <= LARGEST else None


def _number(value: Any) -> Optional[float]:
    try:
        return float(value) if type(value) in (int, float) else None
    except OverflowError:  # an int too large for a float
        return None


def _epoch(record: Mapping[str, Any]) -> str:
    epoch, epochs = whole(record.get("epoch")), whole(record.get("epochs"))
    if epoch is None or not epochs:
        return ""
    return f"epoch {min(epoch, epochs)}/{epochs}"  # after the last one, programs report the next


def _measures(record: Mapping[str, Any]) -> list[str]:
    parts = []
    loss = _number(record.get("loss"))
    if loss is not None:
        parts.append(f"loss {significant(loss)}")
    for unit in RATES:
        rate = _number(record.get(f"{unit}_per_second"))
        if rate is not None and 0 <= rate <= LARGEST:
            parts.append(f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{significant(rate)} {unit}/s")
    return parts


def _count(record: Mapping[str, Any]) -> str:
    step, steps = whole(record.get("step")), whole(record.get("steps"))
    if step is None:
        return ""
    return f"{step}/{steps}" if steps and step <= steps else f"step {step}"


def _bar(record: Mapping[str, Any], blocks: str, columns: int) -> str:
    """The bar; "" where it would be too short to tell anything, or the number of steps is unknown."""
    step, steps = whole(record.get("step")), whole(record.get("steps"))
    if step is None or not steps or step > steps or columns < MIN_BAR_COLUMNS:
        return ""
    full = columns * step // steps
    return blocks[0] * full + blocks[1] * (columns - full)
