"""What Nsight Systems has recorded of ranks, by the tables that its `nsys stats` makes of it: their CSV lies beside it.

Their columns, and the names of files, are those of its documentation; no real one was at hand.
"""

from __future__ import annotations

import csv
import shlex
from itertools import dropwhile
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.text import format_seconds
from ctrain_runtime.run.follow import read_text
from ctrain_runtime.run.profiles import REPORTS

STATS = "nsys stats --report cuda_gpu_kern_sum,cuda_gpu_mem_time_sum --format csv --output . {}"
TIME = "Total Time (ns)"
KERNELS, COPIES = ("Name", "Instances"), ("Operation", "Count")  # columns that tell the two tables from all others
SHOWN = 15  # kernels and copies
WIDTH = 100  # of a name: those of C++ templates have thousands of letters

Row = tuple[str, float, int]  # what took the GPU's time, seconds, how often


def profiles(run: Path) -> tuple[tuple[str, str], ...]:
    """Of each rank that was recorded: its name, and what took longest, or what shows it."""
    reports = sorted((run / run_files.PROFILES).glob(REPORTS), key=lambda path: (len(path.name), path.name))
    return tuple((report.stem, _summary(report)) for report in reports)


def _summary(report: Path) -> str:
    tables = [_table(path) for path in sorted(report.parent.glob(f"{report.stem}_*.csv"))]
    kernels = next((rows for columns, rows in tables if columns == KERNELS), [])
    copies = next((rows for columns, rows in tables if columns == COPIES), [])
    total = sum(seconds for _, seconds, _ in (*kernels, *copies))
    if not total:
        line = STATS.format(shlex.quote(str(report)))
        return f"Open {report} in Nsight Systems. For a summary here, run this where nsys is:\n{line}"
    communication = sum(seconds for name, seconds, _ in kernels if "nccl" in name.lower())
    data = sum(seconds for _, seconds, _ in copies)
    shares = {"communication": communication, "data": data, "computation": total - communication - data}
    lines = [", ".join(f"{kind} {part / total:.0%}" for kind, part in shares.items()) + " of the GPU's time", ""]
    for name, seconds, count in sorted((*kernels, *copies), key=lambda row: -row[1])[:SHOWN]:
        lines.append(f"{seconds / total:6.1%}  {format_seconds(seconds):>8}  {count:>7,} x  {name}")
    return "\n".join(lines)


def _table(path: Path) -> tuple[tuple[str, str], list[Row]]:
    """Which of the two tables a file has, and its rows; none of a file that is neither, or damaged."""
    lines = dropwhile(lambda line: TIME not in line, read_text(path).splitlines())  # nsys may print before
    table = csv.DictReader(lines)
    try:
        for columns in (KERNELS, COPIES):
            name, count = columns
            if {name, count, TIME} <= set(table.fieldnames or ()):
                return columns, [(row[name][:WIDTH], float(row[TIME]) / 1e9, int(row[count])) for row in table]
    except (TypeError, ValueError, csv.Error):  # cut off, or no numbers
        pass
    return ("", ""), []
