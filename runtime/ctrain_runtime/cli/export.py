"""Copy what runs have measured (metrics.jsonl) to TensorBoard, MLflow or Weights & Biases.

  ctrain export last --to tensorboard events      # event files in events/RUN; needs nothing else
  ctrain export one two --to mlflow http://localhost:5000
  ctrain export last --to wandb my-project
  ctrain export last --on kim@login --to tensorboard events   # of a run there, to this machine

Parameters, image with its digest, commit and outcome go along; the command and the environment do not. See: ctrain
help report
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.base.text import pluralize
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.report import add_runs_argument, looked_at
from ctrain_runtime.cli.run_options import add_on
from ctrain_runtime.errors import UsageError
from ctrain_runtime.run import record
from ctrain_runtime.run.record import Record

TENSORBOARD = "tensorboard"
PROGRAMS = (TENSORBOARD, "mlflow", "wandb")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs_argument(parser)
    add_on(parser, dest="login", default="this machine")
    text = "tensorboard DIR, mlflow [URI] (default: MLFLOW_TRACKING_URI) or wandb [PROJECT] (default: the job's name)"
    parser.add_argument("--to", nargs="+", required=True, metavar=("PROGRAM", "WHERE"), help=text)


def execute(args: argparse.Namespace) -> int:
    program, where = _target(args.to)
    export_runs(args, program, where)
    return 0


def export_runs(args: argparse.Namespace, program: str, where: str) -> None:
    """Copy what the runs that are named have measured, and print a line for each. Raises CtrainError, OSError."""
    if not args.login:
        _export([(path, each.record) for path, each in looked_at(args)], program, where)
        return
    from ctrain_runtime.cli import fetch  # only here: of no other verb
    from ctrain_runtime.remote.ssh import Connection

    with tempfile.TemporaryDirectory(prefix="ctrain-export-") as folder:
        with Connection(args.login) as link:
            paths = [path for _, path, _ in fetch.bring(link, args, [run_files.RECORD, run_files.METRICS], folder)]
        _export([(path, record.load(path)) for path in paths], program, where)


def _export(runs: list[tuple[Path, Record]], program: str, where: str) -> None:
    names = Counter(each.run for _, each in runs)
    for name, count in names.items():
        if count > 1:
            raise UsageError(f"{pluralize(count, 'run')} have the name {name}", "Export each to a place of its own")
    export = import_module(f"ctrain_runtime.export.{program}").export
    for path, each in runs:
        place, count = export(path, each, where)
        print_line(f"exported: {each.run} -> {place} ({pluralize(count, 'value')})")


def _target(words: list[str]) -> tuple[str, str]:
    """The program and the place in it, "" if none is named. Raises UsageError."""
    program, *rest = words
    if program not in PROGRAMS:
        near = suggest(program, PROGRAMS)
        raise UsageError(f"--to must be {', '.join(PROGRAMS[:-1])} or {PROGRAMS[-1]}, not {program}", near)
    if len(rest) > 1:
        problem = f"--to takes a program and one place, not {len(rest)}"
        raise UsageError(problem, "Name the runs first, as in: ctrain export last --to tensorboard DIR")
    if program == TENSORBOARD and not rest:
        raise UsageError("--to tensorboard needs a directory", "As in: ctrain export last --to tensorboard events")
    return program, rest[0] if rest else ""
