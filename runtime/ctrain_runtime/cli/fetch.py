"""Fetch the results of runs from a login node to your own machine: records, logs, measures.

  ctrain fetch last --on kim@login.example.org
  ctrain fetch train-1128-1301 --on neuron --to results --checkpoint   # a sweep, with the checkpoints

RUN is a run's name, directory or job there, `last`, or a sweep; each gets a directory of its name. The same line again
fetches what is new, and goes on where it was interrupted. See: ctrain help laptop
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ctrain_runtime.base import run_files
from ctrain_runtime.base.text import format_size, one_line, pluralize
from ctrain_runtime.cli import on
from ctrain_runtime.cli.output import Activity, print_line
from ctrain_runtime.cli.run_options import add_on
from ctrain_runtime.cli.runs import RUNS_HELP, add_where
from ctrain_runtime.errors import RemoteError, UsageError
from ctrain_runtime.job import NAME
from ctrain_runtime.remote import results
from ctrain_runtime.remote.ssh import Connection
from ctrain_runtime.site.select import login_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wanted", nargs="+", metavar="RUN", help=RUNS_HELP)
    add_where(parser)
    add_on(parser, dest="login")
    add = parser.add_argument
    add("--to", default=".", metavar="DIR", help="parent of the runs' directories here (default: the current one)")
    add("--checkpoint", action="store_true", help="fetch checkpoints, too")
    add("--code", action="store_true", help="fetch the copy of the code, too, and what the program has written there")
    add("--overwrite", action="store_true", help="replace files that are newer here")


def execute(args: argparse.Namespace) -> int:
    host = args.login or login_of(args.site or "")
    if not host:
        raise UsageError("no login node given", "Pass --on HOST, or --site with a site that has a `login`")
    names = [*run_files.RESULTS]
    names += [run_files.CHECKPOINT] * args.checkpoint + [run_files.CODE] * args.code
    with Connection(host) as link:
        for run, target, done in bring(link, args, names, args.to, overwrite=args.overwrite):
            _print(run, target, done)
    return 0


def bring(
    link: Connection, args: argparse.Namespace, names: list[str], to: str, *, overwrite: bool = False
) -> Iterator[tuple[dict[str, Any], Path, results.Fetched]]:
    """Fetch files of these names of the runs that are wanted, each to a directory below `to`; yields what is known of
    the run there, its directory here, and what was fetched. Raises CtrainError, OSError."""
    on.greet(link)
    place = on.where(args, is_named=bool(args.login))
    runs = link.call({"what": "list", "wanted": args.wanted, "names": names, **place}).get("runs")
    for run in runs if isinstance(runs, list) else []:
        where = str(run["run"])
        name = PurePosixPath(where).name
        if not NAME.fullmatch(name):
            raise RemoteError(f"{link.host} offers a run of the name {name!r}", "Nothing was written")
        target, files = Path(to, name), results.read_list(link.host, run["files"])
        report = Activity(sys.stderr).report
        yield run, target, results.fetch(link, where, files, target, names, overwrite=overwrite, report=report)


def _print(run: dict[str, Any], target: Path, done: results.Fetched) -> None:
    name = target.name
    same = f", {done.same} are here already" if done.same else ""
    print_line(f"{name}: fetched {pluralize(done.files, 'file')} ({format_size(done.size)}) to {target}{same}")
    if done.kept:
        print_line(f"kept what is newer here: {', '.join(done.kept)}; --overwrite replaces it", sys.stderr)
    if run["links"]:
        print_line(f"left out links: {one_line(', '.join(map(str, run['links'])))}", sys.stderr)
    if run["ended"]:
        print_line(f"look at it: ctrain report {shlex.quote(str(target))}")
    else:
        print_line("it has not ended; the same line later fetches the rest")
