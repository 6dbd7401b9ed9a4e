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
import sys

from ctrain_runtime.cli import run_options
from ctrain_runtime.errors import UsageError
from ctrain_runtime.run.prepare import prepare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    others = run_options.add_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the plan and the scripts, run nothing")
    others.add_argument(
        "--full", action="store_true", help="with --dry-run: print also the files that are the same in every run"
    )
    others.add_argument("--json", action="store_true", help="print the plan or the record as JSON")
    run_options.add_plain(others)


def execute(args: argparse.Namespace) -> int:
    if args.full and (args.json or not args.dry_run):
        raise UsageError("--full belongs to the text of a dry run", "Pass --dry-run --full, without --json")
    request = run_options.request_of(args)
    prepared = prepare(request)
    if args.dry_run:
        from ctrain_runtime.cli import run_view

        print(run_view.as_json(prepared) if args.json else run_view.describe(prepared, full=args.full))
        return 0

    from ctrain_runtime.cli import follow, terminal  # not while the scheduler waits to be asked: start-up is measured

    screen = terminal.Terminal(sys.stderr if args.json else sys.stdout, plain=args.plain)
    return follow.start(prepared, request.site.reason, screen, as_json=args.json)
