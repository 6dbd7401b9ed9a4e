"""The live view of a run: some lines below the output of rank 0, on a terminal. State in, lines out; rich paints them.

They are the same for 1 rank and for 1,000: how many are up, how far the slowest is from the others, and the news.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ctrain_runtime.base.text import format_duration, format_seconds, format_size, one_line, pluralize
from ctrain_runtime.base.time_limit import format_limit
from ctrain_runtime.cli.progress import BLOCKS, progress

LABEL_COLUMNS = 10
MIN_LABELED = 60  # columns; narrower terminals get no labels
NEWS = 3  # the last ones
LARGEST = 1e15  # of seconds and bytes; larger values are nonsense
MEMORY = (("memory", "GPU memory"), ("host_memory", "memory"))  # keys of metrics.jsonl


@dataclass(frozen=True)
class Row:
    label: str
    text: str
    style: str = ""


@dataclass(frozen=True)
class View:
    """What is known of a run. `begun`: when its job started, in seconds since the epoch; `limit` is in minutes, `left`
    in seconds. `metrics` is the last record that shows where the training is; `news` are lines with their time."""

    run: str
    unit: str
    nodes: int
    total: int
    limit: Optional[int] = None
    state: str = "submitted"
    begun: Optional[float] = None
    restarts: int = 0
    started: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    left: Optional[float] = None
    news: tuple[str, ...] = ()


def rows(view: View, now: float, columns: int, blocks: str = BLOCKS) -> list[Row]:
    """The rows for a terminal of so many columns."""
    columns -= LABEL_COLUMNS if columns >= MIN_LABELED else 0
    shown = progress(view.metrics, view.left, blocks, columns) if view.metrics else ""
    fields = [
        Row("run", f"{view.run}  {_state(view, now)}", "bold"),
        Row("progress", shown, "green"),
        Row(f"{view.unit}s", _ranks(view)),
        *(Row("news" if number == 0 else "", line, "yellow") for number, line in enumerate(view.news[-NEWS:])),
    ]
    return [row for row in fields if row.text]


def paint(lines: Sequence[Row], columns: int) -> list[str]:
    """The rows as text with escape sequences, none wider than `columns`. NO_COLOR is heeded."""
    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        width=columns,
        force_terminal=True,
        color_system="standard",
        markup=False,
        highlight=False,
        emoji=False,
    )
    with console.capture() as capture:
        console.print(table(lines, columns))
    return capture.get().splitlines()


def table(lines: Sequence[Row], columns: int) -> Any:
    """The rows as rich's table: each is one line, cut where the terminal ends."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(expand=False)
    labeled = columns >= MIN_LABELED
    if labeled:
        grid.add_column(width=LABEL_COLUMNS)
    grid.add_column(no_wrap=True)
    for row in lines:
        cell = Text(one_line(row.text), style=row.style, no_wrap=True, overflow="ellipsis")
        grid.add_row(*([Text(row.label, style="dim")] if labeled else []), cell)
    return grid


def _state(view: View, now: float) -> str:
    limit = f" of {format_limit(view.limit)}" if view.limit is not None else ""
    took = f" {format_duration(max(0.0, now - view.begun))}{limit}" if view.begun and view.state == "running" else ""
    again = f", {pluralize(view.restarts, 'restart')}" if view.restarts else ""
    return f"{view.state}{took}{again}"


def _ranks(view: View) -> str:
    """How many are up, how long a step takes and how that differs between ranks, and the memory that they use."""
    metrics = view.metrics
    if view.state != "running":
        return f"{view.total} on {pluralize(view.nodes, 'node')}"
    up = view.total if metrics else view.started  # who trains is up
    parts = [f"{up} of {view.total} up on {pluralize(view.nodes, 'node')}", _step(metrics)]
    for key, name in MEMORY:
        size = _positive(metrics.get(key))
        parts.append(f"{name} {format_size(size)}" if size else "")
    return "  ".join(part for part in parts if part)


def _step(metrics: Mapping[str, Any]) -> str:
    """The time of a step: of rank 0, and its spread where the program tells that of each rank."""
    each = by_rank(metrics)
    if len(each) > 1:
        middle, slowest = sorted(each)[(len(each) - 1) // 2], max(each)
        text = f"step {format_seconds(middle)}, {format_seconds(min(each))} to {format_seconds(slowest)}"
        return f"{text} (rank {each.index(slowest)})"
    seconds = _positive(metrics.get("seconds"))
    return f"step {format_seconds(seconds)}" if seconds else ""


def by_rank(metrics: Mapping[str, Any]) -> list[float]:
    """The seconds of each rank's step; [] where the program does not tell those of all."""
    values = metrics.get("seconds_by_rank")
    each = [_positive(value) for value in values] if isinstance(values, list) else []
    return [value for value in each if value] if all(each) else []


def _positive(value: Any) -> Optional[float]:
    return float(value) if type(value) in (int, float) and 0 < value < LARGEST and math.isfinite(value) else None
