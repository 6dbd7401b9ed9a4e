"""Watch a run that was submitted earlier, or whose terminal was closed, until it ends.

  ctrain attach last
  ctrain attach resnet50-1121-0412

RUN is a run's name, directory or job, or `last`. Shows where it stands, its last lines of output, and what is added.
Ctrl-C leaves it, and the run goes on: exit code 129. Else exits with the program's code. Of a run that has ended, it
shows how.
"""

from __future__ import annotations

import argparse
import sys

from ctrain_runtime.cli.follow import DETACHED, finish, follow
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.run_options import add_plain
from ctrain_runtime.cli.run_state import as_state
from ctrain_runtime.cli.runs import add_run_argument, chosen_run
from ctrain_runtime.cli.status import describe
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.pick_up import pick_up, refresh, require_known

LAST_LINES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    add_plain(parser)


def execute(args: argparse.Namespace) -> int:
    terminal = Terminal(sys.stderr if args.json else sys.stdout, plain=args.plain)
    with Interrupts(only_detach=True) as interrupts:
        run = pick_up(chosen_run(args))
        status, conclusion = refresh(run)
        require_known(status)
        if conclusion:
            return finish(run, conclusion, terminal, as_json=args.json)
        terminal.show(describe(as_state(run, status, run.record), with_output=False))
        code = follow(run, terminal, interrupts, as_json=args.json, last_lines=LAST_LINES)
    if code == DETACHED:
        print_line(f"{run.plan.run} goes on; cancel it with: ctrain cancel {run.plan.run}", sys.stderr)
    return code
