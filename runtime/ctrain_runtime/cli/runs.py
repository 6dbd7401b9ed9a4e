"""List your runs, newest first; remove those that have ended.

  ctrain runs                                       # the newest of all directories to which you have submitted runs
  ctrain runs --since 2d --state failed
  ctrain runs rm resnet50-1121-0412 ddp-1120-1933   # list what would be removed; --yes removes it
  ctrain runs gc --older-than 60d                   # all that ended longer ago, but for those that have a checkpoint

Completes the records of runs that have ended unwatched. Only those are removed that are yours and have certainly ended.
See: ctrain help runs
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Union

from ctrain_runtime.base.text import format_duration, format_size, pluralize, table
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.progress import last_words
from ctrain_runtime.cli.run_options import add_on, add_site
from ctrain_runtime.cli.run_state import RunState, look, state
from ctrain_runtime.errors import CtrainError, DataError, UsageError
from ctrain_runtime.run import group, parent_directories, record
from ctrain_runtime.run.pick_up import find_run, list_parents, list_runs, pick_up
from ctrain_runtime.run.remove import Removable, check, remove, size_on_disk
from ctrain_runtime.schedulers.protocol import Status

SHOWN = 20
WIDEST = 40  # columns of a cell: one long name moves its own row alone
PARALLEL = 8  # runs that are refreshed at a time
RUN_HELP = "name or directory of a run, its job, or `last`"
RUNS_HELP = f"{RUN_HELP}; or the name of a sweep"
HEAD = ("run", "state", "job", "where", "ranks", "elapsed", "created", "last")
SHOWN_METRICS = ("epoch", "epochs", "step", "steps", "loss")
KEPT_FOR = "30d"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    add = parser.add_argument
    add("--all", action="store_true", help=f"list all (default: the newest {SHOWN})")
    add("--since", default="", metavar="AGE", help="only runs created since then, as in 2d or 12h")
    add("--state", default="", metavar="STATE", help="only runs in this state, as in running or failed")
    add("--name", default="", metavar="TEXT", help="only runs whose name contains TEXT")
    actions = parser.add_subparsers(dest="action", metavar="rm|gc")
    rm = actions.add_parser("rm", help="remove the directories of runs", allow_abbrev=False)
    gc = actions.add_parser("gc", help="remove runs that ended long ago", allow_abbrev=False)
    for action in (rm, gc):
        _add_common(action)
        for option in action._actions:
            option.default = argparse.SUPPRESS  # keeps options given before the action
        action.add_argument("--yes", action="store_true", help="do it; without this, only list what would be done")
    rm.add_argument("wanted", nargs="+", metavar="RUN", help=RUNS_HELP)
    text = f"runs that ended longer ago than this (default: {KEPT_FOR})"
    gc.add_argument("--older-than", default=KEPT_FOR, metavar="AGE", help=text)
    gc.add_argument("--checkpoints", action="store_true", help="also those that have a checkpoint")


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_where(parser)
    add_on(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_where(parser: argparse.ArgumentParser) -> None:
    """The options that tell where runs are looked for."""
    text = "look in this parent directory of runs alone (default: the site's, and all others that you have used)"
    parser.add_argument("--runs", default="", metavar="DIR", help=text)
    add_site(parser)


def add_run_argument(parser: argparse.ArgumentParser, default: str = "", text: str = RUN_HELP) -> None:
    """The argument RUN, of the verbs that act on one run; with a default, it may be left out."""
    optional: dict[str, Any] = {"nargs": "?", "default": default} if default else {}
    parser.add_argument("run", metavar="RUN", help=text, **optional)
    add_where(parser)
    add_on(parser)


def run_parents(args: argparse.Namespace) -> tuple[Path, ...]:
    """The parent directories of runs: that of --runs alone, else all of the caller's. Raises SiteError, ConfigError."""
    return parent_directories.searched(args.site or "", args.runs)


def chosen_run(args: argparse.Namespace) -> Path:
    """The directory of RUN. Raises DataError if it does not exist."""
    parents = run_parents(args)
    if sweep := group.find(args.run, *parents):
        problem = f"{args.run} is a sweep of {pluralize(len(sweep.runs), 'run')}"
        raise DataError(problem, f"Name one, as in {sweep.runs[0].run}; list them with: ctrain status {args.run}")
    return find_run(args.run, *parents)


def chosen_runs(wanted: Sequence[str], parents: Sequence[Path]) -> list[Path]:
    """The directories of each RUN, and of the runs of each sweep. Raises DataError if one does not exist."""
    paths: dict[Path, None] = {}
    for reference in wanted:
        sweep = group.find(reference, *parents)
        paths.update(dict.fromkeys(sweep.submitted if sweep else (find_run(reference, *parents),)))
    return list(paths)


def execute(args: argparse.Namespace) -> int:
    parents = run_parents(args)
    if args.action:
        due = list(_named(args.wanted, parents) if args.action == "rm" else _old(args, parents))
        return _remove(args, due, parents)
    listed = _listed(args, parents)
    if args.json:
        print_line(json.dumps({"runs": [dataclasses.asdict(each.record) for each in listed]}, indent=2))
    elif listed:
        names = Counter(each.record.run for each in listed)
        print_line(table(HEAD, [_row(each, is_unique=names[each.record.run] == 1) for each in listed], widest=WIDEST))
        for each in listed:
            if each.word == "unknown" and each.status.note:
                print_line(f"{each.record.run}: {each.status.note}", sys.stderr)
    elif not next(list_runs(*parents), None):
        print_line(f"no runs in {list_parents(parents)}")
    elif args.name or args.since or args.state:
        print_line("no run matches")
    return 0


def _listed(args: argparse.Namespace, parents: Sequence[Path]) -> list[RunState]:
    """The runs that are asked for, in their state now."""
    paths = [path for path in list_runs(*parents) if args.name in path.name]
    if not (args.all or args.since or args.state):
        paths = paths[:SHOWN]
    earliest = time.time() - _seconds(args.since) if args.since else 0.0
    states = []
    with ThreadPoolExecutor(PARALLEL) as pool:  # a scheduler that does not answer costs its time limit once
        for path, result in zip(paths, pool.map(try_look, paths)):
            if isinstance(result, CtrainError):  # of an older ctrain, or damaged: it does not hide the others
                print_line(f"{path.name}: {result}", sys.stderr)
            elif _moment(result.record.created) >= earliest and result.word.startswith(args.state):
                states.append(result)
    return states if args.all else states[:SHOWN]


def try_look(path: Path) -> Union[RunState, CtrainError]:
    """The state of a run, or why it cannot be read."""
    try:
        return look(pick_up(path))
    except CtrainError as error:
        return error


def _row(of_run: RunState, *, is_unique: bool) -> tuple[str, ...]:
    shown = of_run.record
    hosts = shown.nodes[0] if len(shown.nodes) == 1 else pluralize(len(shown.nodes), "node")
    measures = {key: value for key, value in of_run.metrics.items() if key in SHOWN_METRICS}
    return (
        shown.run if is_unique else shown.run_directory,
        of_run.word,
        shown.attempts[-1].name if shown.attempts else "-",
        hosts if shown.nodes else "-",
        str(shown.world_size),
        "-" if of_run.elapsed is None else format_duration(of_run.elapsed),
        shown.created[: len("2026-11-22T04:58")].replace("T", " "),
        last_words(measures),
    )


def _named(wanted: Sequence[str], parents: Sequence[Path]) -> Iterator[Removable]:
    """The runs to remove. Raises CtrainError if one of them cannot be."""
    for reference in wanted:
        if any(path.is_symlink() for path in (Path(reference), *(parent / reference for parent in parents))):
            raise DataError(f"{reference} is a link", "Name the run's own directory")
    for path in chosen_runs(wanted, parents):
        yield check(path, list_runs(*parents))


def _old(args: argparse.Namespace, parents: Sequence[Path]) -> Iterator[Removable]:
    """The runs that ended long ago; those of an older ctrain, or in use, are named and left alone."""
    latest = time.time() - _seconds(args.older_than)
    for path in list_runs(*parents):
        try:
            ended = record.load(path).end
            if path.is_symlink() or not ended or _moment(ended) > latest:
                continue
            removable = check(path, list_runs(*parents))
        except CtrainError as error:
            print_line(f"kept {path.name}: {error}", sys.stderr)
            continue
        if args.checkpoints or not removable.has_checkpoint:
            yield removable


def _remove(args: argparse.Namespace, due: Sequence[Removable], parents: Sequence[Path]) -> int:
    from ctrain_runtime.remote import copies  # only here: start-up is measured

    paths = {each.path for each in due}
    code = {path: size_on_disk(path) for parent in parents for path in copies.unneeded(parent, paths)}
    if args.yes:
        for each in due:
            remove(each)
        code = {path: size for path, size in code.items() if copies.remove(path)}
        for sweep in filter(None, (group.find(reference, *parents) for reference in vars(args).get("wanted", ()))):
            Path(sweep.file).unlink()
    if args.json:
        rows = [{"run": each.record.run, "run_directory": str(each.path), "size": each.size} for each in due]
        of_code = [{"directory": str(path), "size": size} for path, size in code.items()]
        print_line(json.dumps({"runs": rows, "code": of_code, "done": args.yes}, indent=2))
        return 0
    lines = [
        (
            str(each.path),
            state(each.record, Status("ended")),
            (each.record.end or "-").partition("T")[0],
            format_size(each.size),
            "with its checkpoint" if each.has_checkpoint else "",
        )
        for each in due
    ]
    lines += [(str(path), "code of no run", "-", format_size(size), "") for path, size in code.items()]
    size = sum(each.size for each in due) + sum(code.values())
    copied = f", {len(code)} of code" if code else ""
    what = f"{pluralize(len(due), 'run')}{copied} ({format_size(size)})"
    print_line(table(("run", "state", "ended", "size", ""), lines) if lines else "nothing to remove")
    if lines:
        print_line(f"removed {what}" if args.yes else f"{what}; confirm with --yes")
    return 0


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _seconds(age: str) -> float:
    """Of an age. Raises UsageError, also for a number alone: what is removed must be certain."""
    form = re.fullmatch(r"([0-9]{1,6})([mhdw])", age)
    if not form:
        raise UsageError(f"invalid age {age!r}", "Write it as in 90m, 12h, 30d or 8w")
    return float(int(form[1]) * {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}[form[2]])
