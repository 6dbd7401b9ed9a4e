"""Submit a job and return once it is queued. Watch it with ctrain attach, cancel it with ctrain cancel.

  ctrain submit resnet50 --nodes 2 -- --epochs 90
  ctrain submit ./train --sweep lr=0.1,0.01 --sweep seed=1..3 --at-once 2   # six runs, a sweep

Options and arguments are those of ctrain run. A sweep has a name, for ctrain status, wait and cancel.
See: ctrain help runs
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from ctrain_runtime.cli import run_options, run_view, sweep
from ctrain_runtime.cli.follow import follow
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.errors import UsageError
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.run.submit import submit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    others = run_options.add_arguments(parser)
    sweep.add_arguments(parser)
    others.add_argument("--json", action="store_true", help="print the record as JSON")


def execute(args: argparse.Namespace) -> int:
    request = run_options.request_of(args)
    if args.sweep:
        return sweep.submit_sweep(args, request)
    if args.at_once is not None:
        raise UsageError("--at-once is for a sweep", "Add --sweep NAME=VALUES")
    prepared = prepare(request)
    with Interrupts() as interrupts:
        run = submit(prepared.launch)
        if interrupts.cancel:  # Ctrl-C during the submission
            return follow(run, Terminal(sys.stderr if args.json else sys.stdout), interrupts, as_json=args.json)
    if args.json:
        print_line(json.dumps(dataclasses.asdict(run.record), indent=2))
        return 0
    print_line(run_view.summary(prepared, request.site.reason))
    reference = run.path if args.runs else run.plan.run  # a name is looked up in the site's own directory
    print_line(f"submitted as {run.job_name}; watch it with: ctrain attach {reference}")
    return 0
