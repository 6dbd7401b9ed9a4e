"""A sweep as one table: parameters, states and last measures of its runs, and which has the lowest loss."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.base.text import format_duration, pluralize, significant, table
from ctrain_runtime.cli.progress import last_words
from ctrain_runtime.cli.run_state import RunState
from ctrain_runtime.cli.runs import PARALLEL, WIDEST, try_look
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.run.group import Group, Member

NOT_SUBMITTED, REMOVED = "not submitted", "removed"
Row = tuple[Member, str, Optional[RunState]]  # a run, its state, and what is known besides


def rows(group: Group) -> list[Row]:
    """The runs of a group in their state now."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(lambda member: _row(group, member), group.runs))


def _row(group: Group, member: Member) -> Row:
    path = group.path(member)
    if not (path / run_files.PLAN).is_file():
        return member, REMOVED if member.job else NOT_SUBMITTED, None
    state = try_look(path)
    return (member, str(state), None) if isinstance(state, CtrainError) else (member, state.word, state)


def describe(of_sweep: Sequence[Row]) -> str:
    """The table, how many are in which state, and the run with the lowest loss."""
    names = list(of_sweep[0][0].parameters)
    lines = [(member.run, *member.parameters.values(), word, *_measures(state)) for member, word, state in of_sweep]
    counts = Counter(word for _, word, _ in of_sweep)
    total = f"{pluralize(len(of_sweep), 'run')}: {', '.join(f'{number} {word}' for word, number in counts.items())}"
    return "\n".join(
        [table(("run", *names, "state", "elapsed", "last"), lines, widest=WIDEST), total, *_best(of_sweep)]
    )


def _measures(state: Optional[RunState]) -> tuple[str, str]:
    if not state:
        return "-", ""
    return "-" if state.elapsed is None else format_duration(state.elapsed), last_words(state.metrics)


def _best(of_sweep: Sequence[Row]) -> list[str]:
    losses = [
        (loss, member) for member, _, state in of_sweep if (loss := _loss(state.metrics if state else {})) is not None
    ]
    if len(losses) < 2:
        return []
    loss, member = min(losses, key=lambda each: each[0])
    settings = " ".join(f"{name}={value}" for name, value in member.parameters.items())
    return [f"lowest loss: {significant(loss)}, of {member.run} ({settings})"]


def _loss(metrics: Mapping[str, Any]) -> Optional[float]:
    loss: Any = metrics.get("loss")
    return float(loss) if type(loss) in (int, float) and not math.isnan(loss) else None


def as_json(group: Group, of_sweep: Sequence[Row]) -> str:
    runs = [
        {
            "run": member.run,
            "run_directory": str(group.path(member)),
            "parameters": member.parameters,
            "state": word,
            "exit_code": state.record.exit.code if state and state.record.exit else None,
            "metrics": dict(state.metrics) if state else {},
        }
        for member, word, state in of_sweep
    ]
    return json.dumps({"group": group.name, "at_once": group.at_once, "runs": runs}, indent=2)
