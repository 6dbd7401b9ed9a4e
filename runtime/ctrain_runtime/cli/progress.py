"""The bar of a run, from the records of metrics.jsonl. The program writes those: any value may be in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from ctrain_runtime.text import format_duration, significant

BAR_COLUMNS = 20
BLOCKS, ASCII_BLOCKS = "█░", "#-"  # done and to do; the second for encodings that lack the first
LARGEST = 10**15  # steps, epochs or images beyond it are nonsense, and Python refuses to print the largest
LONGEST_SECONDS = 10 * 365 * 86400.0  # nobody waits for an ETA beyond it


def progress(record: Mapping[str, Any], left: Optional[float], blocks: str = BLOCKS) -> str:
    """One line for a record; what it lacks, or has of a wrong type, is left out. `left`: seconds to go, if known."""
    loss, rate = _number(record.get("loss")), _number(record.get("images_per_second"))
    parts = [_epoch(record), *_steps(record, blocks)]
    if loss is not None:
        parts.append(f"loss {significant(loss)}")
    if rate is not None and 0 <= rate <= LARGEST:
        parts.append(f"{rate:,.0f} images/s" if rate >= 10 else f"{significant(rate)} images/s")
    if left is not None and 0 < left <= LONGEST_SECONDS:
        parts.append(f"ETA {format_duration(left)}")
    return "  ".join(part for part in parts if part)


class Pace:
    """How fast a run goes: what it needs to tell when it will be done."""

    def __init__(self) -> None:
        self.step: Optional[int] = None  # the last one
        self._begin = (0.0, 0)  # (seconds, step) from which the pace is measured

    def update(self, record: Mapping[str, Any], now: float) -> Optional[float]:
        """Take the newest record that has a step; the seconds to go at the pace so far, None when unknown.

        The first step may be any: a resumed run begins where the earlier one was. A step that goes back begins anew.
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
    """`value` if it can be a number of steps: True is none, nor is "3"."""
    return value if type(value) is int and 0 <= value <= LARGEST else None


def _number(value: Any) -> Optional[float]:
    try:
        return float(value) if type(value) in (int, float) else None
    except OverflowError:  # an int that no float can be
        return None


def _epoch(record: Mapping[str, Any]) -> str:
    epoch, epochs = whole(record.get("epoch")), whole(record.get("epochs"))
    if epoch is None or not epochs:
        return ""
    return f"epoch {min(epoch, epochs)}/{epochs}"  # after the last one, programs report the next


def _steps(record: Mapping[str, Any], blocks: str) -> list[str]:
    step, steps = whole(record.get("step")), whole(record.get("steps"))
    if step is None:
        return []
    if not steps or step > steps:
        return [f"step {step}"]
    full = BAR_COLUMNS * step // steps
    return [blocks[0] * full + blocks[1] * (BAR_COLUMNS - full), f"{step}/{steps}"]
