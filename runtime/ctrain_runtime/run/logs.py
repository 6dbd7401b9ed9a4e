"""The logs of a run, line by line, read in pieces: a log may have grown to any size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run import shared_files
from ctrain_runtime.run.follow import PIECE_BYTES, Tail
from ctrain_runtime.run.restarts import of_last_attempt


@dataclass(frozen=True)
class Log:
    """The log at `path`. `keep` begins the lines that count, and is left out ("": all do); `label` is put before."""

    path: Path
    keep: str = ""
    label: str = ""


def select(plan: LaunchPlan, ranks: Iterable[int]) -> list[Log]:
    """The logs of `ranks`; of several, each line begins with the number of its rank, as in logs that ranks share."""
    numbers = list(ranks)
    alone = len(numbers) == 1
    logs: dict[Path, Log] = {}
    for rank in numbers:
        if not 0 <= rank < plan.recorded_ranks:
            raise UsageError(f"{plan.run} has {plan.recorded_ranks} {plan.unit}s, from 0 on: no {plan.unit} {rank}")
        path = Path(plan.run_directory) / run_files.rank_log(rank, rank // ranks_per_node(plan), plan.recorded_ranks)
        mark, is_shared = f"[{rank}] ", path.name.startswith("node")
        logs[path] = Log(path, mark if alone and is_shared else "", "" if alone or is_shared else mark)
    return list(logs.values())


def ranks_per_node(plan: LaunchPlan) -> int:
    """How many of a node's processes have a log."""
    return plan.recorded_ranks // plan.size.nodes


def last_lines(log: Path, rank: int) -> list[str]:
    """The last lines of a rank, of its last attempt, in a log that ranks of its node may share."""
    lines = shared_files.last_lines(log)
    if log.name.startswith("node"):
        prefix = f"[{rank}] "
        lines = [line[len(prefix) :] for line in lines if line.startswith(prefix)]
    return of_last_attempt(lines)


class LogReader:
    """Reads the lines of a growing log that contain `text`."""

    def __init__(self, log: Log, text: str = "") -> None:
        self._log, self._text = log, text
        self._tail = Tail(log.path)
        self._partial = ""

    def first(self, last: Optional[int]) -> Iterator[list[str]]:
        """The lines so far, of which only the `last` ones; None: all."""
        if last is not None and not (self._text or self._log.keep):
            self._tail.skip_to_last(last)
        elif last is not None:
            return iter([list(deque(chain.from_iterable(self.added()), last))])
        return self.added()

    def added(self) -> Iterator[list[str]]:
        """The complete lines since the last call, piece by piece."""
        for piece in self._tail.pieces():
            *lines, self._partial = (self._partial + piece).split("\n")
            yield self._wanted(lines)
            if len(self._partial) > PIECE_BYTES:  # no line any more: it is shown in pieces, too
                yield self.unfinished()

    def unfinished(self) -> list[str]:
        """The last line, if it has no end yet."""
        line, self._partial = self._partial, ""
        return self._wanted([line] if line else [])

    def _wanted(self, lines: list[str]) -> list[str]:
        keep, label, text = self._log.keep, self._log.label, self._text
        return [f"{label}{line[len(keep) :]}" for line in lines if line.startswith(keep) and text in line[len(keep) :]]
