"""Run a job on the nodes of a cluster, or on this machine, and watch it to its end.

  ctrain run resnet50 --nodes 2                                 # a packaged job
  ctrain run ./my_experiment --nodes 4                          # a directory with a job.yaml
  ctrain run --nodes 2 --image pytorch -- python train.py       # any command, in the current directory
  ctrain run resnet50 --nodes 2 --dry-run                       # what would run, and where: nothing is started
  ctrain run resnet50 --nodes 2 --resume resnet50-1121-0412     # from the checkpoint of an earlier run

Arguments after -- go to the program; without JOB they are the command. Ctrl-C cancels the run; a closed terminal does
not: ctrain attach picks it up. Exits with the program's code. See: ctrain help jobs, ctrain help runs
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.cli import run_options, run_view
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.errors import CANCELLED, SchedulerError, UsageError
from ctrain_runtime.run import directory
from ctrain_runtime.run.conclude import Conclusion, conclude
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.run.submit import Run, submit
from ctrain_runtime.run.watch import watch

DETACHED = 129  # 128 + SIGHUP: the terminal was closed, or the run was left; it continues


def add_arguments(parser: argparse.ArgumentParser) -> None:
    others = run_options.add_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the plan and the scripts, run nothing")
    others.add_argument(
        "--full", action="store_true", help="with --dry-run: print also the files that are the same in every run"
    )
    others.add_argument("--json", action="store_true", help="print the plan or the record as JSON")
    add_plain(others)


def add_plain(parser: argparse._ActionsContainer) -> None:
    """The option --plain, of verbs that watch a run."""
    parser.add_argument("--plain", action="store_true", help="print lines only, also on a terminal: no live view")


def execute(args: argparse.Namespace) -> int:
    if args.full and (args.json or not args.dry_run):
        raise UsageError("--full belongs to the text of a dry run", "Pass --dry-run --full, without --json")
    request = dataclasses.replace(run_options.make_request(args), dry_run=args.dry_run)
    prepared = prepare(request)
    if args.dry_run:
        as_json = json.dumps(directory.as_data(prepared.launch), indent=2)
        print(as_json if args.json else run_view.describe(prepared, full=args.full))
        return 0
    terminal = Terminal(sys.stderr if args.json else sys.stdout, plain=args.plain)
    with Interrupts() as interrupts:
        terminal.show(run_view.summary(prepared, request.site.reason))
        return follow(submit(prepared.launch), terminal, interrupts, as_json=args.json)


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
