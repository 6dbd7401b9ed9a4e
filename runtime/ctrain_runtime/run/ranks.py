"""The ranks of a run: where each ran, how it ended, and which one failed first."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from ctrain_runtime.payload.ctrain_program import EXIT_GIVE_UP, EXIT_SAVED
from ctrain_runtime.run.events import Event

TERMINATED = 128 + signal.SIGTERM
KILLED = 128 + signal.SIGKILL  # as by the kernel without memory; other signals are also answers to the loss of a rank
ANSWER_SECONDS = 2.0  # by which such answers may precede their cause, as clocks differ; less than before ctrain kills
EARLY_SECONDS = 1.0  # between the ends of two ranks: less is how programs end that all do the same


@dataclass(frozen=True)
class Rank:
    """One rank. Times are in seconds since the epoch; `exit_code` is None while it runs, and if it vanished.

    `refusal` is the message of a check of ctrain's own that failed before its program started; "" otherwise.
    `memory_limit` is set if processes of it were killed for want of memory: the limit in bytes, 0 if it has none.
    """

    number: int
    host: str
    start: Optional[float]
    end: Optional[float] = None
    exit_code: Optional[int] = None
    refusal: str = ""
    memory_limit: Optional[int] = None

    def exit_description(self) -> str:
        """How it ended, as text."""
        if self.refusal:
            return self.refusal
        if self.exit_code is None:
            return "no exit status (node failed, or all its processes were killed)"
        name = _signal_name(self.exit_code - 128)
        return f"signal {self.exit_code - 128} ({name})" if name else f"exit code {self.exit_code}"


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


def from_events(events: Iterable[Event]) -> list[Rank]:
    """Every rank that has started, or was refused, by number."""
    ranks: dict[int, Rank] = {}
    for event in events:
        if event.rank is None or event.what == "signalled":
            continue
        rank = ranks.get(event.rank, Rank(event.rank, event.node, event.time))
        if event.what == "ended":
            rank = dataclasses.replace(rank, end=event.time, exit_code=event.code, memory_limit=event.memory_limit)
        elif event.what == "refused":
            # The wrapper outside the container writes its end after the check inside has written the refusal.
            code = event.code if rank.exit_code is None else rank.exit_code
            rank = dataclasses.replace(rank, end=rank.end or event.time, exit_code=code, refusal=event.message)
        ranks[event.rank] = rank
    return sorted(ranks.values(), key=lambda rank: rank.number)


def started(ranks: list[Rank]) -> int:
    """How many ranks have started their program."""
    return sum(not rank.refusal for rank in ranks)


def first_failure(ranks: list[Rank]) -> Optional[Rank]:
    """The rank that failed first, after which the others were stopped; else the first one that vanished.

    A rank that was terminated is not the first: it was stopped because of another, perhaps one that vanished. One that
    was killed at about the same time as others failed is: they have lost their connection to it. But one that ended
    with a code by which it tells what it wants (docs/contract.md) has not ended because of others.
    """
    failures = sorted((rank for rank in ranks if rank.exit_code), key=_end)
    soon = [rank for rank in failures if _end(rank) < _end(failures[0]) + ANSWER_SECONDS]
    failed = failures[0] if failures else None
    if failed and failed.exit_code not in (EXIT_SAVED, EXIT_GIVE_UP):
        failed = next((rank for rank in soon if rank.exit_code == KILLED), failed)
    vanished = next((rank for rank in ranks if rank.exit_code is None), None)
    return vanished if vanished and (failed is None or failed.exit_code == TERMINATED) else failed


def fates(ranks: list[Rank], failed: Rank, total: int) -> tuple[tuple[int, str], ...]:
    """What became of the other ranks of a run: how many, and what."""
    codes = [rank.exit_code for rank in ranks if rank.number != failed.number]
    stopped = sum(code in (None, TERMINATED, KILLED) for code in codes)
    completed = codes.count(0)
    counted = (
        (stopped, "stopped"),
        (len(codes) - stopped - completed, "failed, too"),
        (completed, "ended with exit code 0"),
        (total - 1 - len(codes), "never started"),
    )
    return tuple((number, what) for number, what in counted if number)


def ended_before(ranks: list[Rank], failed: Rank) -> Optional[Rank]:
    """The first rank that ended with code 0 well before `failed`: others may have waited for it in vain."""
    early = [rank for rank in ranks if rank.exit_code == 0 and _end(rank) < _end(failed) - EARLY_SECONDS]
    return min(early, key=_end, default=None)


def hosts(ranks: list[Rank]) -> list[str]:
    """Host names in the order of the ranks."""
    return list(dict.fromkeys(rank.host for rank in ranks))


def _end(rank: Rank) -> float:
    return math.inf if rank.end is None else rank.end
