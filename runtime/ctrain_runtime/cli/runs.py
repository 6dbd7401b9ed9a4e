"""List your runs, newest first. Completes the records of runs that have ended unwatched.

  ctrain runs
  ctrain runs --all --json

See: ctrain help runs
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Union

from ctrain_runtime.base.text import pluralize, table
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.run_options import add_site
from ctrain_runtime.cli.run_state import state
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.run import parent_directories
from ctrain_runtime.run.pick_up import find_run, list_runs, pick_up, refresh
from ctrain_runtime.run.prepare import runs_directory
from ctrain_runtime.run.record import Record
from ctrain_runtime.schedulers.protocol import Status
from ctrain_runtime.site.select import select_site

SHOWN = 20
WIDEST = 32  # characters of a name for which the rows of others make room
RUN_HELP = "name or directory of a run, its job, or `last`"
PARALLEL = 8  # runs that are refreshed at a time
HEAD = ("run", "state", "job", "image", "where", "ranks", "created")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_where(parser)
    parser.add_argument("--all", action="store_true", help=f"list all (default: the newest {SHOWN})")
    parser.add_argument("--json", action="store_true", help="print the records as JSON")


def add_where(parser: argparse.ArgumentParser) -> None:
    """The options that tell where runs are looked for."""
    text = "look in this parent directory of runs alone (default: the site's, and all others that you have used)"
    parser.add_argument("--runs", default="", metavar="DIR", help=text)
    add_site(parser)


def add_run_argument(parser: argparse.ArgumentParser, default: str = "") -> None:
    """The argument RUN, of the verbs that act on one run; with a default, it may be left out."""
    optional: dict[str, Any] = {"nargs": "?", "default": default} if default else {}
    parser.add_argument("run", metavar="RUN", help=RUN_HELP, **optional)
    add_where(parser)


def run_parents(args: argparse.Namespace) -> tuple[Path, ...]:
    """The parent directories of runs: that of --runs alone, else all of the caller's. Raises SiteError, ConfigError."""
    own = runs_directory(select_site(args.site or "", {"runs": args.runs}).site)
    return (own,) if args.runs else parent_directories.with_remembered(own)


def chosen_run(args: argparse.Namespace) -> Path:
    """The directory of RUN. Raises DataError if it does not exist."""
    return find_run(args.run, *run_parents(args))


def execute(args: argparse.Namespace) -> int:
    parents = run_parents(args)
    paths = list(islice(list_runs(*parents), None if args.all else SHOWN))
    rows: list[tuple[Record, Status]] = []
    with ThreadPoolExecutor(PARALLEL) as pool:  # a scheduler that does not answer costs its time limit once
        for path, result in zip(paths, pool.map(_refresh, paths)):
            if isinstance(result, CtrainError):  # of an older ctrain, or damaged: it does not hide the others
                print_line(f"{path.name}: {result}", sys.stderr)
            else:
                rows.append(result)
    if args.json:
        print_line(json.dumps({"runs": [dataclasses.asdict(record) for record, _ in rows]}, indent=2))
    elif rows:
        print_line(table(HEAD, [_row(record, status) for record, status in rows], widest=WIDEST))
        for record, status in rows:
            if status.phase == "unknown":
                print_line(f"{record.run}: {status.note}", sys.stderr)
    elif not paths:
        print_line(f"no runs in {', '.join(map(str, parents))}")
    return 0


def _refresh(path: Path) -> Union[tuple[Record, Status], CtrainError]:
    try:
        run = pick_up(path)
        status, conclusion = refresh(run)
    except CtrainError as error:
        return error
    return conclusion.record if conclusion else run.record, status


def _row(record: Record, status: Status) -> tuple[str, ...]:
    last = record.attempts[-1].name if record.attempts else "-"
    hosts = record.nodes[0] if len(record.nodes) == 1 else pluralize(len(record.nodes), "node")
    created = record.created.replace("T", " ").partition("+")[0]
    where = hosts if record.nodes else "-"
    return record.run, state(record, status), last, record.image["name"], where, str(record.world_size), created
