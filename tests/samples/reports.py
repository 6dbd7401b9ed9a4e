"""Runs that have ended, as subjects of reports: their directories hold what scripts and programs write."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ctrain_runtime.base import run_files
from ctrain_runtime.report.subject import Subject, examine
from ctrain_runtime.run import record
from ctrain_runtime.run.conclude import conclude
from ctrain_runtime.schedulers.protocol import Outcome, Status
from samples.runs import StandIn, submitted, write_end, write_ranks

HOSTILE = "</pre></style><script>hacked=1</script><img src=x onerror='hacked=1'>\x1b[2J"
SUBMITTED = record.iso(90.0)


def a_subject(path: Path, *codes: int, metrics: str = "", log: str = "", **parts: Any) -> Subject:
    """The report of a run whose first ranks have ended with these codes, and the others with 0."""
    run = submitted(path, StandIn(Status("ended", "X", Outcome.FAILED if any(codes) else Outcome.COMPLETED)), **parts)
    first = dataclasses.replace(run.record.attempts[0], submitted=SUBMITTED)
    run = dataclasses.replace(run, record=dataclasses.replace(run.record, attempts=(first,)))
    codes = (*codes, *[0] * (run.plan.recorded_ranks - len(codes)))
    write_end(run.path, max(codes, default=0))
    write_ranks(run.path, *codes, per_node=8)
    (run.path / run_files.METRICS).write_text(metrics)
    for rank, code in enumerate(codes):
        (run.path / run_files.rank_log(rank, 0, 8)).write_text(log if code else "fine\n")
    ended = conclude(run, Status("ended", "X", Outcome.FAILED if any(codes) else Outcome.COMPLETED)).record
    return examine(run, ended, "completed" if ended.exit and ended.exit.code == 0 else "failed")


def lines(*rates: float, time: float = 103.0) -> str:
    records = [
        {"step": n, "loss": 3 - n / 10, "images_per_second": rate, "time": time + n} for n, rate in enumerate(rates)
    ]
    return "".join(json.dumps(each) + "\n" for each in records)
