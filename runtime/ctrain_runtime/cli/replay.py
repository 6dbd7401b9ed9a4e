"""Run again what a run was, and watch it: the same image, code, command, parameters, variables, data and layout.

  ctrain replay last                                # prints what differs before it starts, where losses part at its end
  ctrain replay one --site local --gpus-per-node 0  # on this machine
  ctrain replay one --set seed=2                    # with another value of a parameter
  ctrain replay one --strict --tolerance 0          # exit code 86 unless all losses are the same

RUN is a run's name, directory or job, or `last`. Exits with the program's code. See: ctrain help replay
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.text import table
from ctrain_runtime.cli import follow, run_view
from ctrain_runtime.cli.output import Activity, print_line
from ctrain_runtime.cli.run_options import add_plain, add_site
from ctrain_runtime.cli.runs import RUN_HELP, run_parents
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.errors import LossesPart, UsageError
from ctrain_runtime.plan.options import parse_env
from ctrain_runtime.report import replayed
from ctrain_runtime.run import replay
from ctrain_runtime.run.parameters import parse_setting
from ctrain_runtime.run.pick_up import find_run, pick_up
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.run.request import Request
from ctrain_runtime.site.select import select_site

TOLERANCE = 1e-6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help=RUN_HELP)
    add("--nodes", type=int, metavar="N", help="number of nodes (default: the run's)")
    add("--ranks-per-node", type=int, metavar="N", help="ranks per node (default: the run's)")
    add("--gpus-per-node", type=int, metavar="N", help="GPUs per node (default: the run's)")
    add("--image", default="", metavar="IMAGE", help="another image (default: the run's, by its digest)")
    add("--data", default="", metavar="PATH", help="where the data set is (default: where it was)")
    text = "another value of a parameter (repeatable)"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=text)
    text = "variable besides the run's, or another value (repeatable)"
    add("--env", action="append", default=[], metavar="NAME[=VALUE]", help=text)
    add("--name", default="", help="name of the replay (default: the job's and the time)")
    text = "relative difference up to which losses agree (default: %(default)g)"
    add("--tolerance", type=float, default=TOLERANCE, metavar="X", help=text)
    add("--strict", action="store_true", help="exit with code 86 if losses part, or cannot be compared")
    add("--dry-run", action="store_true", help="print what differs, the plan and the scripts, run nothing")
    add_plain(parser)
    add("--store", metavar="DIR", help="store of the image (default: CTRAIN_STORE, then the site's)")
    add(
        "--runs",
        default="",
        metavar="DIR",
        help="parent directory of runs (default: CTRAIN_RUNS, then the site's)",
    )
    add_site(parser)


def execute(args: argparse.Namespace) -> int:
    if not 0 <= args.tolerance < 1:
        raise UsageError(f"--tolerance must be a number of at least 0 and below 1, not {args.tolerance:g}")
    path = find_run(args.run, *run_parents(args))
    run = pick_up(path)
    site = select_site(args.site or "", vars(args))
    request = _request(args, replay.request(run, path, site, dict(map(parse_setting, args.set))))
    prepared = prepare(request)
    plan = prepared.launch.plan
    rows, unknown = replayed.differences(run, path, plan, request.report)
    terminal = Terminal(sys.stdout, plain=args.plain)
    terminal.show(_differences(run.plan.run, rows, unknown))
    if args.dry_run:
        print_line(run_view.describe(prepared))
        return 0
    code = follow.start(prepared, request.site.reason, terminal)
    if code == follow.DETACHED:
        return code
    metrics = (path / run_files.METRICS, Path(plan.run_directory) / run_files.METRICS)
    verdict, agree = _verdict(replayed.compare_losses(*metrics, args.tolerance), args.tolerance)
    print_line(verdict)
    print_line(f"all that differs: ctrain compare {path} {plan.run_directory}")
    if args.strict and code == 0 and not agree:
        raise LossesPart(verdict)
    return code


def _request(args: argparse.Namespace, request: Request) -> Request:
    """The request with what the command line has in another way."""
    options = dataclasses.replace(
        request.options,
        nodes=args.nodes,
        ranks_per_node=args.ranks_per_node,
        gpus_per_node=args.gpus_per_node,
        data=str(Path(args.data).resolve()) if args.data else request.options.data,
        env={**request.options.env, **parse_env(args.env)},
        image=args.image or request.options.image,
        name=args.name,
    )
    report = Activity(sys.stderr).report
    return dataclasses.replace(request, dry_run=args.dry_run, options=options, report=report)


def _differences(name: str, rows: list[replayed.Row], unknown: list[str]) -> str:
    head = table(("differs", name, "replay"), rows) if rows else f"nothing differs from run {name}"
    return "\n".join((head, *(f"unknown: {line}" for line in unknown)))


def _verdict(losses: replayed.Losses, tolerance: float) -> tuple[str, bool]:
    """A line on the losses, and whether they agree."""
    if not losses.compared:
        return "losses cannot be compared: no step has a `loss` in the metrics.jsonl of both runs", False
    where = f"within {tolerance:g} (relative)"
    if losses.step is None:
        return f"losses agree at all {losses.compared} equal steps {where}", True
    both = f"{losses.recorded!r} recorded, {losses.replayed!r} now"
    return f"losses part at step {losses.step:g}: {both}; not {where}", False
