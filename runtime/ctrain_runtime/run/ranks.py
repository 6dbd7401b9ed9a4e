"""What the ranks recorded of themselves: where each ran, and which one ended first and why."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_runtime.schedulers import script


@dataclass(frozen=True)
class Rank:
    """One rank. Times are in seconds since the epoch; `code` and `end` are None while it runs, or when it vanished."""

    number: int
    host: str
    start: float
    end: Optional[float] = None
    code: Optional[int] = None

    def how(self) -> str:
        """How it ended, in words."""
        if self.code is None:
            return "vanished (its node failed, or everything there was killed)"
        if self.code > 128:
            return f"signal {self.code - 128} ({_signal_name(self.code - 128)})"
        return f"exit code {self.code}"


def _signal_name(number: int) -> str:
    words = {
        signal.SIGKILL: "killed",
        signal.SIGSEGV: "segmentation fault",
        signal.SIGTERM: "terminated",
        signal.SIGABRT: "aborted",
    }
    try:
        return words.get(signal.Signals(number), signal.Signals(number).name)
    except ValueError:
        return "unknown"


def read(run: Path) -> list[Rank]:
    """Every rank that has started, by number."""
    return sorted(
        (_parse(int(path.name), path.read_text(encoding="utf-8")) for path in (run / script.RANKS).iterdir()),
        key=lambda rank: rank.number,
    )


def _parse(number: int, text: str) -> Rank:
    lines = [line.split() for line in text.splitlines()]
    _, start, host = lines[0]
    if len(lines) < 2 or len(lines[1]) < 3:  # still running, or cut off while writing
        return Rank(number, host, float(start))
    return Rank(number, host, float(start), float(lines[1][1]), int(lines[1][2]))


def first_failure(ranks: list[Rank]) -> Optional[Rank]:
    """The rank that failed first, because of which the others were stopped; else the first one that vanished."""
    failed = [rank for rank in ranks if rank.code]
    if failed:
        return min(failed, key=lambda rank: rank.end or 0.0)
    return next((rank for rank in ranks if rank.code is None), None)


def nodes(ranks: list[Rank]) -> list[str]:
    """Host names in the order of the ranks."""
    return list(dict.fromkeys(rank.host for rank in ranks))
