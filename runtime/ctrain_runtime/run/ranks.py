"""What the ranks recorded of themselves: where each ran, and which one ended first and why."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_runtime.schedulers import script


@dataclass(frozen=True)
class Rank:
    """One rank. Times are in seconds since the epoch; `code` is None while it runs, or when it vanished."""

    number: int
    host: str
    start: float
    end: Optional[float] = None
    code: Optional[int] = None

    def how(self) -> str:
        """How it ended, in words."""
        if self.code is None:
            return "vanished (its node failed, or everything there was killed)"
        name = _signal_name(self.code - 128)
        return f"signal {self.code - 128} ({name})" if name else f"exit code {self.code}"


def _signal_name(number: int) -> str:
    words = {
        signal.SIGKILL: "killed",
        signal.SIGSEGV: "segmentation fault",
        signal.SIGTERM: "terminated",
        signal.SIGABRT: "aborted",
    }
    try:
        return words.get(signal.Signals(number), signal.Signals(number).name)
    except ValueError:  # no signal: 3, or the 255 of sys.exit(-1)
        return ""


def read(run: Path) -> list[Rank]:
    """Every rank that has started, by number."""
    found = (_parse(int(path.name), path.read_text(encoding="utf-8")) for path in (run / script.RANKS).iterdir())
    return sorted((rank for rank in found if rank), key=lambda rank: rank.number)


def _parse(number: int, text: str) -> Optional[Rank]:
    """The rank of a record. Only whole lines count: a full disk or a killed node cuts a record off anywhere."""
    lines = [line.split() for line in text.split("\n")[:-1]]
    if not lines:
        return None
    _, start, host = lines[0]
    if len(lines) < 2:
        return Rank(number, host, float(start))
    _, *end, code = lines[1]  # a signal that ends the run may also end the `date` that says when
    return Rank(number, host, float(start), float(end[0]) if end else None, int(code))


def first_failure(ranks: list[Rank]) -> Optional[Rank]:
    """The rank that failed first, because of which the others were stopped; else the first one that vanished."""
    failed = [rank for rank in ranks if rank.code]
    if failed:
        return min(failed, key=lambda rank: math.inf if rank.end is None else rank.end)
    return next((rank for rank in ranks if rank.code is None), None)


def nodes(ranks: list[Rank]) -> list[str]:
    """Host names in the order of the ranks."""
    return list(dict.fromkeys(rank.host for rank in ranks))
