"""Make one page about a run, or about several compared: curves, timeline, ranks, resources, image, plan, failures.

  ctrain report last                          # writes RUN.html to the current directory
  ctrain report one two -o compared.html      # curves over each other, settings that differ, scaling
  ctrain report last --text                   # for the terminal
  ctrain report last --on kim@login           # made there, written here

RUN is a run's name, directory or job, `last`, or a sweep; it may still be running. The page is one file that needs no
network, for any browser. It holds what plan.json and the logs hold: look at it before you pass it on. See: ctrain help
report
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import os
import tempfile
from pathlib import Path

from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.run_options import add_on
from ctrain_runtime.cli.run_state import RunState, in_words, look
from ctrain_runtime.cli.runs import RUNS_HELP, add_where, chosen_runs, run_parents
from ctrain_runtime.errors import CtrainError, DiskFullError, UsageError
from ctrain_runtime.report import page, text
from ctrain_runtime.report.subject import Subject, examine
from ctrain_runtime.run.pick_up import pick_up
from ctrain_runtime.run.submit import Run

MAX_RUNS = 100  # of one page or export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs_argument(parser)
    add_on_if_asked(parser)
    parser.add_argument("-o", "--output", default="", metavar="FILE", help="write the page there (default: RUN.html)")
    parser.add_argument("--text", action="store_true", help="print text in place of a page")


def add_runs_argument(parser: argparse.ArgumentParser) -> None:
    """The runs that are looked at together."""
    parser.add_argument("wanted", nargs="+", metavar="RUN", help=RUNS_HELP)
    add_where(parser)


def add_on_if_asked(parser: argparse.ArgumentParser) -> None:
    """The option --on of verbs that look at runs here unless it is given: results that were fetched are here."""
    add_on(parser, default="this machine")
    parser.set_defaults(stays_here=True)


def execute(args: argparse.Namespace) -> int:
    if args.text and args.output:
        raise UsageError("--text writes no file", "Leave out -o, or use: ctrain report ... --text >FILE")
    if args.text:
        print_line(text.text(subjects_of(args)))
        return 0
    return write(args.output, *made(args))


def made(args: argparse.Namespace) -> tuple[str, str]:
    """The name of the page, and the page. Raises CtrainError."""
    subjects = subjects_of(args)
    name = subjects[0].name if len(subjects) == 1 else f"{subjects[0].name}-compared"
    return name, page.page(subjects)


def write(output: str, name: str, content: str) -> int:
    """Write a page to the file `output`, or to one of its name; the exit code. Raises CtrainError."""
    path = Path(output or f"{name}.html")
    _write(path, content)
    print_line(f"report: {path.absolute()}")
    return 0


def subjects_of(args: argparse.Namespace) -> list[Subject]:
    """The runs that are named, each once. Raises CtrainError."""
    runs = looked_at(args)
    return [examine(_where_it_is(each.run, path), each.record, in_words(each)) for path, each in runs]


def looked_at(args: argparse.Namespace) -> list[tuple[Path, RunState]]:
    """The directories of the runs that are named, each once, and where these stand. Raises CtrainError."""
    paths = chosen_runs(args.wanted, run_parents(args))
    if len(paths) > MAX_RUNS:
        raise UsageError(f"{len(paths)} runs: at most {MAX_RUNS} at a time", "Name fewer")
    return [(path, look(pick_up(path))) for path in paths]


def _where_it_is(run: Run, path: Path) -> Run:
    """The run in the directory that was named: one that has ended may have been moved, as to an archive."""
    return dataclasses.replace(run, plan=dataclasses.replace(run.plan, run_directory=str(path)))


def _write(path: Path, content: str) -> None:
    """Replace a file atomically. It is for its owner only, as run directories are. Raises CtrainError."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory", "Name a file: -o FILE")
    try:
        number, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(number, "w", encoding="utf-8", errors="replace") as file:
                file.write(content)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else CtrainError
        raise kind(f"cannot write {path}: {error.strerror}", "Name another file: -o FILE") from error
