"""Wait until runs have ended, and print how.

  ctrain wait last && ctrain run evaluate
  ctrain wait first second third

RUN is a run's name, directory or job, `last`, or a sweep. Exits with 0 if all runs are complete, else with the code of
the first of them, in the order given, that is not. Ctrl-C ends the wait alone: the runs go on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.run_options import add_on
from ctrain_runtime.cli.run_state import as_state, in_words
from ctrain_runtime.cli.runs import RUNS_HELP, add_where, chosen_runs, run_parents
from ctrain_runtime.run.pick_up import pick_up
from ctrain_runtime.run.wait import ends


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wanted", nargs="+", metavar="RUN", help=RUNS_HELP)
    add_where(parser)
    add_on(parser)
    parser.add_argument("--json", action="store_true", help="print the records as JSON")


def execute(args: argparse.Namespace) -> int:
    parents = run_parents(args)
    runs = [pick_up(path) for path in chosen_runs(args.wanted, parents)]
    ended = {}
    for run, status, record in ends(runs):
        ended[run.path] = record
        if not args.json:
            print_line(f"{run.plan.run}  {in_words(as_state(run, status, record))}")
    records = [ended[run.path] for run in runs]
    if args.json:
        print_line(json.dumps({"runs": [dataclasses.asdict(record) for record in records]}, indent=2))
    return next((record.exit.code for record in records if record.exit and record.exit.code), 0)
