"""The submission of a sweep (ctrain submit --sweep)."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from pathlib import Path

from ctrain_runtime import job
from ctrain_runtime.base.text import pluralize
from ctrain_runtime.cli import run_view
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.errors import CANCELLED, CtrainError, UsageError
from ctrain_runtime.run import group, parent_directories
from ctrain_runtime.run.grid import combinations, parse_axes
from ctrain_runtime.run.group import Group
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.run.request import Request
from ctrain_runtime.run.submit import Run
from ctrain_runtime.run.sweep import submit_group

MOST = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("sweep: one run for each combination of values").add_argument
    text = "values of a parameter: 0.1,0.01 or 1..3 (repeatable)"
    add("--sweep", action="append", default=[], metavar="NAME=VALUES", help=text)
    text = "runs at a time (default: all that the scheduler starts; without a queue, 1)"
    add("--at-once", type=int, metavar="N", help=text)
    add("--max-runs", type=int, default=MOST, metavar="N", help=f"refuse more combinations (default: {MOST})")


def submit_sweep(args: argparse.Namespace, request: Request) -> int:
    """Submit all combinations as a group; returns the exit code."""
    for option in ("at_once", "max_runs"):
        if (value := getattr(args, option)) is not None and value < 1:
            raise UsageError(f"--{option.replace('_', '-')} must be a positive integer, not {value}")
    options = request.options
    planned = job.find(options.job) if options.job else job.from_command(tuple(options.command), Path.cwd())
    axes = parse_axes(args.sweep, options.parameters, tuple(planned.parameters))
    settings = combinations(axes, args.max_runs)
    # Whatever is wrong with all of them is wrong with the first, and nothing exists yet.
    first = dataclasses.replace(options, name="", parameters={**options.parameters, **settings[0]})
    sample = prepare(dataclasses.replace(request, options=first, dry_run=True))
    at_once = args.at_once or (None if sample.launch.plan.placement.is_queued else 1)
    made = group.create(parent_directories.of_site(request.site.site), options.name, planned.name, at_once, settings)
    if not args.json:
        print_line(run_view.summary(sample, request.site.reason, of_sweep=f"{made.name}-N"))
        limit = f", {at_once} at a time" if at_once else ""
        print_line(f"{'sweep':<10}{made.name}: {pluralize(len(settings), 'run')} over {', '.join(axes)}{limit}")
    return _submit(args, request, made)


def _submit(args: argparse.Namespace, request: Request, made: Group) -> int:
    runs: list[Run] = []
    stopped = False
    again = f"Submit the others by the same line with --name {made.name}; cancel these: ctrain cancel {made.name}"
    with Interrupts() as interrupts:
        try:
            for run in submit_group(request, made):
                runs.append(run)
                stopped = interrupts.cancel or interrupts.detach
                if stopped:
                    break
        except CtrainError as error:
            if not runs and not made.submitted:
                with contextlib.suppress(OSError):
                    Path(made.file).unlink()
                raise
            problem = f"submitted {_count(made)} of {len(made.runs)} runs, then: {error.message}"
            raise type(error)(problem, again) from error
    if args.json:
        records = [dataclasses.asdict(run.record) for run in runs]
        print_line(json.dumps({"group": made.name, "runs": records}, indent=2))
    elif stopped and _count(made) < len(made.runs):
        print_line(f"stopped: {_count(made)} of {len(made.runs)} runs are submitted. {again}", sys.stderr)
    else:
        print_line(f"submitted {pluralize(len(runs), 'run')}; see: ctrain status {made.name}")
    return CANCELLED if stopped else 0


def _count(made: Group) -> int:
    """How many runs have a job by now."""
    return sum(bool(member.job) for member in group.load(Path(made.file)).runs)
