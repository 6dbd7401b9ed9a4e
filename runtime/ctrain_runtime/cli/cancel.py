"""Cancel a run, or all runs of a sweep, and wait for the end.

  ctrain cancel last

RUN is a run's name, directory or job, `last`, or a sweep. Returns when the job has ended, after a minute at the latest.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Optional

from ctrain_runtime.cli import sweep_view
from ctrain_runtime.cli.follow import follow
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.runs import PARALLEL, RUNS_HELP, add_run_argument, chosen_run, run_parents
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.run import group
from ctrain_runtime.run.cancel import cancel
from ctrain_runtime.run.group import Group
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.pick_up import pick_up, refresh, require_known


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser, text=RUNS_HELP)


def execute(args: argparse.Namespace) -> int:
    if sweep := group.find(args.run, *run_parents(args)):
        return _cancel_sweep(sweep)
    run = pick_up(chosen_run(args))
    status, conclusion = refresh(run)
    require_known(status)
    if conclusion:
        reason = conclusion.record.exit.reason if conclusion.record.exit else "unknown"
        print_line(f"{run.plan.run} has already ended: {reason}")
        return 0
    with Interrupts() as interrupts:
        interrupts.cancel = True
        follow(run, Terminal(sys.stdout, plain=True), interrupts, as_json=False, last_lines=0)
    return 0


def _cancel_sweep(sweep: Group) -> int:
    """Cancel the runs of a sweep, the last ones first: they would start when those before them end."""
    problems = []
    with ThreadPoolExecutor(PARALLEL) as pool:
        for path, error in zip(reversed(sweep.submitted), pool.map(_try_cancel, reversed(sweep.submitted))):
            if error:
                problems.append(f"{path.name}: {error.message}")
    print_line(sweep_view.describe(sweep_view.rows(sweep)))
    if problems:
        raise SchedulerError("; ".join(problems), f"Retry with: ctrain cancel {sweep.name}")
    return 0


def _try_cancel(path: Path) -> Optional[CtrainError]:
    try:
        cancel(pick_up(path))
    except CtrainError as error:
        return error
    return None
