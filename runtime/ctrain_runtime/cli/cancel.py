"""Cancel a run and wait for its end.

  ctrain cancel last

RUN is a run's name, directory or job, or `last`. Returns when the job has ended, after a minute at the latest.
"""

from __future__ import annotations

import argparse
import sys

from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.run import follow
from ctrain_runtime.cli.runs import add_run_argument, chosen_run
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.pick_up import pick_up, refresh, require_known


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)


def execute(args: argparse.Namespace) -> int:
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
