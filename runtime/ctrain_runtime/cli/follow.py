"""A run on a terminal until its end: for every verb that watches one."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.cli import run_view
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.errors import CANCELLED, SchedulerError
from ctrain_runtime.run.conclude import Conclusion, conclude
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.request import Prepared
from ctrain_runtime.run.submit import Run, submit
from ctrain_runtime.run.watch import watch

DETACHED = 129  # 128 + SIGHUP: the terminal was closed, or the run was left; it continues


def start(prepared: Prepared, reason: str, terminal: Terminal, *, as_json: bool = False) -> int:
    """Submit a run, with `reason` for its site in the summary, and follow it; returns its exit code. Raises CtrainError
    if it cannot be submitted."""
    with Interrupts() as interrupts:
        terminal.show(run_view.summary(prepared, reason))
        return follow(submit(prepared.launch), terminal, interrupts, as_json=as_json)


def follow(
    run: Run, terminal: Terminal, interrupts: Interrupts, *, as_json: bool, last_lines: Optional[int] = None
) -> int:
    """Show a run, of its output so far only the last lines, until it has ended or is left, and how it ended; returns
    its exit code. Raises SchedulerError for a job that cannot be cancelled."""
    terminal.submitted(run.job_name, run.plan)
    try:
        last = watch(run, terminal, interrupts, last_lines)
    finally:
        terminal.close()
    if interrupts.detach:
        return DETACHED
    if not last.job_is_over:
        if not (interrupts.leave and (run.path / run_files.CANCELLED).exists()):  # the mark of an accepted cancellation
            hint = f"Retry with: ctrain cancel {run.path}"
            raise SchedulerError(f"cannot cancel {run.job_name}; it may still be running", hint)
        print_line(f"{run.job_name} is being cancelled; see its end with: ctrain attach {run.path}", sys.stderr)
        return CANCELLED
    return finish(run, conclude(run, last.status), terminal, as_json=as_json)


def finish(run: Run, conclusion: Conclusion, terminal: Terminal, *, as_json: bool) -> int:
    """Print how a run ended; returns its exit code."""
    if as_json:
        print_line(json.dumps(dataclasses.asdict(conclusion.record), indent=2))
    else:
        terminal.show(run_view.ending(run.plan, conclusion, terminal.step or 0, terminal.last_output))
        if terminal.is_terminal:
            terminal.show(f"look at it: ctrain report {run.plan.run}")
    return conclusion.record.exit.code if conclusion.record.exit else 1
