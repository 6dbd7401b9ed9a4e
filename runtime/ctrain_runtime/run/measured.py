"""What a program has measured of itself: metrics.jsonl, in which programs may write any value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.run.follow import Metrics

RATE, MEMORY = "tokens_per_second", "memory"  # keys
LARGEST = 1e15  # larger values are nonsense


@dataclass(frozen=True)
class Measured:
    """Tokens per second of all ranks, and the most bytes of memory of one; None if the program wrote none."""

    tokens_per_second: Optional[float] = None
    memory: Optional[int] = None


def measure(metrics: Path) -> Measured:
    """The median rate of a run without its first third, in which programs compile and fill caches; its peak memory."""
    rates: list[float] = []
    sizes: list[float] = []
    for record in Metrics(metrics).read():
        for key, values in ((RATE, rates), (MEMORY, sizes)):
            value: Any = record.get(key)
            if type(value) in (int, float) and 0 < value < LARGEST:
                values.append(float(value))
    rates = sorted(rates[len(rates) // 3 :])
    return Measured(rates[len(rates) // 2] if rates else None, round(max(sizes)) if sizes else None)
