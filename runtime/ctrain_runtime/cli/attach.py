"""Watch a run that was submitted earlier, or whose terminal was closed, until it ends.

  ctrain attach last
  ctrain attach resnet50-1121-0412

RUN is a run's name, directory or job, or `last`. Ctrl-C cancels the run. Exits with the program's code. If the
run has ended, print how.
"""

from __future__ import annotations

import argparse
import sys

from ctrain_runtime.cli.run import finish, follow
from ctrain_runtime.cli.runs import add_run_argument, chosen_run
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.pick_up import pick_up, refresh, require_known


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")


def execute(args: argparse.Namespace) -> int:
    terminal = Terminal(sys.stderr if args.json else sys.stdout)
    with Interrupts() as interrupts:
        run = pick_up(chosen_run(args))
        status, conclusion = refresh(run)
        require_known(status)
        if conclusion:
            return finish(run, conclusion, terminal, as_json=args.json)
        return follow(run, terminal, interrupts, as_json=args.json)
