"""Print what the ranks of a run have written, or follow it to the end of the run.

  ctrain logs last                            # of rank 0
  ctrain logs last -f --tail 20               # the last 20 lines, then what is added
  ctrain logs last --rank 11
  ctrain logs last --node gpu37 --grep Error  # a node by its name or number: lines of its ranks that contain a text
  ctrain logs last --job                      # what scheduler and launcher have written

RUN is a run's name, directory or job, or `last`. Of several ranks, each line begins with its rank: [11].
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

from ctrain_runtime.base import run_files
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.runs import add_run_argument, chosen_run
from ctrain_runtime.errors import UsageError
from ctrain_runtime.run import events, ranks, shared_files
from ctrain_runtime.run.logs import Log, LogReader, ranks_per_node, select
from ctrain_runtime.run.pick_up import pick_up
from ctrain_runtime.run.submit import Run
from ctrain_runtime.run.watch import EndLook

POLL_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, default=0, metavar="N", help="this rank (default: 0)")
    which.add_argument("--node", default="", metavar="NODE", help="all ranks of a node, by its name or number")
    which.add_argument("--all", action="store_true", help="all ranks")
    which.add_argument("--job", action="store_true", help="the job's own log")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument("-n", "--tail", type=_count, metavar="N", help="begin with the last N lines of each log")
    parser.add_argument("--grep", default="", metavar="TEXT", help="only lines that contain TEXT")


def execute(args: argparse.Namespace) -> int:
    run = pick_up(chosen_run(args))
    logs = _logs(run, args)
    if shared_files.has_caches(run.path):
        shared_files.renew(log.path for log in logs)
    readers = [LogReader(log, args.grep) for log in logs]
    for reader in readers:
        _print(reader.first(args.tail))
    if not any(log.path.exists() for log in logs):
        print_line(f"nothing written yet: {', '.join(str(log.path) for log in logs[:1])}", sys.stderr)
    if args.follow:
        _follow(run, readers)
    for reader in readers:
        _print([reader.unfinished()])
    return 0


def _follow(run: Run, readers: list[LogReader]) -> None:
    """Print what is added until the run has ended."""
    end, has_ended = EndLook(run), False
    while not has_ended:
        has_ended = end.has_ended()
        for reader in readers:  # after the look: what was written before the end is shown
            _print(reader.added())
        if not has_ended:
            time.sleep(POLL_SECONDS)


def _logs(run: Run, args: argparse.Namespace) -> list[Log]:
    plan = run.plan
    if args.job:
        return [Log(run.path / run_files.JOB_LOG)]
    if args.all:
        return select(plan, range(plan.recorded_ranks))
    if args.node:
        first = _node(run, args.node) * ranks_per_node(plan)
        return select(plan, range(first, first + ranks_per_node(plan)))
    return select(plan, [args.rank])


def _node(run: Run, node: str) -> int:
    """The number of a node. Raises UsageError."""
    started = ranks.from_events(events.read_node_events(run.path))
    numbers = {rank.host: rank.number // ranks_per_node(run.plan) for rank in reversed(started)}
    number = numbers.get(node, int(node) if node.isdecimal() else -1)
    if not 0 <= number < run.plan.size.nodes:
        known = ", ".join([*numbers][::-1]) or "no rank has started"
        raise UsageError(f"{run.plan.run} has no node {node}", f"Nodes: 0 to {run.plan.size.nodes - 1}; {known}")
    return number


def _print(lines: Iterable[list[str]]) -> None:
    for part in lines:
        if part:  # lines one by one would take ten times as long
            print("\n".join(part))
    sys.stdout.flush()


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of lines, not {text!r}")
    return int(text)
