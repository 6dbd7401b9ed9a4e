"""The table of docs/faults.md: faults that were injected on the cluster of tests/cluster, and what came of them. Tests
that inject some write their rows with CTRAIN_FAULTS=write; the others stay."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
FAULTS = (
    "rank killed",
    "rank hung in a collective",
    "hung in data loading",
    "exit 0 early",
    "out of memory",
    "node lost",
    "time limit",
    "preemption",
    "disk full while a checkpoint is written",
    "checkpoint damaged",
    "slurmctld restarted",
    "shared file system frozen for a minute",
    "submitting shell killed",
    "scancel by hand",
    "crash loop",
)
PROGRAMS = ("torchrun", "Horovod", "Lightning", "gpt")
HEAD = "| fault | program | what ctrain says | seconds to the next step | steps lost | seen, load |"
NOT_RUN = "not run"
ENDS = "the run ends"


@dataclass(frozen=True)
class Row:
    """Numbers are texts, as they stand in the table; `seen` is a day, with the load of the 5 minutes before."""

    fault: str
    program: str
    line: str
    seconds: str
    lost: str
    seen: str

    def __str__(self) -> str:
        return f"| {' | '.join(text.replace('|', '&#124;') or ' ' for text in astuple(self))} |"


def read(page: str) -> list[Row]:
    """The rows of a page that were run."""
    table = page[page.index(HEAD) :].splitlines()[2:]
    cells = ([cell.strip().replace("&#124;", "|") for cell in line.strip("|").split(" | ")] for line in table if line)
    return [Row(*row) for row in cells if row[1] != NOT_RUN]


def render(page: str, rows: Iterable[Row]) -> str:
    """The page with these rows in the place of its own; a fault without one was not run."""
    by_key = {(row.fault, row.program): row for row in rows}
    lines = [HEAD, "|---|---|---|---|---|---|"]
    for fault in FAULTS:
        found = [by_key[fault, program] for program in PROGRAMS if (fault, program) in by_key]
        lines += map(str, found or [Row(fault, NOT_RUN, "", "", "", "")])
    return page[: page.index(HEAD)] + "\n".join(lines) + "\n"


def record(fault: str, program: str, line: str, seconds: float | None, lost: int | None) -> None:
    """Write a row, if that is asked for. Without `seconds`, the run has ended."""
    numbers = (ENDS, "") if seconds is None else (f"{seconds:.0f}", str(lost))
    seen = f"{datetime.date.today().isoformat()}, {os.getloadavg()[1]:.0f}"
    row = Row(fault, program, line, *numbers, seen)
    print(row)
    if os.environ.get("CTRAIN_FAULTS") == "write":
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(render(page, [*read(page), row]), encoding="utf-8")
