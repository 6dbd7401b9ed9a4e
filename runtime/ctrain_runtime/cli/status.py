"""Show where a run stands: its state, how long it has run and may run, its nodes, and what its program last measured.

  ctrain status                     # of the newest run
  ctrain status resnet50-1121-0412
  ctrain status train-1128-1301     # of a sweep: a table of its runs, and which has the lowest loss

RUN is a run's name, directory or job, `last`, or a sweep. `ETA` is at the pace since the job has started. A run of
which neither its files nor its scheduler tell anything certain is `unknown`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from contextlib import suppress
from typing import Any

from ctrain_runtime.base import run_files
from ctrain_runtime.base.text import format_duration, one_line
from ctrain_runtime.cli import sweep_view
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.progress import last_words
from ctrain_runtime.cli.run_state import RunState, in_words, look
from ctrain_runtime.cli.runs import RUNS_HELP, add_run_argument, chosen_run, run_parents
from ctrain_runtime.run import events, group, hangs, ranks, shared_files
from ctrain_runtime.run.pick_up import pick_up

NODES_NAMED = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser, default="last", text=RUNS_HELP)
    parser.add_argument("--json", action="store_true", help="print the same facts as JSON")


def execute(args: argparse.Namespace) -> int:
    if sweep := group.find(args.run, *run_parents(args)):
        runs = sweep_view.rows(sweep)
        print_line(sweep_view.as_json(sweep, runs) if args.json else sweep_view.describe(runs))
        return 0
    state = look(pick_up(chosen_run(args)))
    print_line(json.dumps(_as_data(state), indent=2) if args.json else describe(state))
    return 0


def describe(state: RunState, *, with_output: bool = True) -> str:
    """The state of a run in a few aligned rows, with its last line of output."""
    hosts, up = _ranks(state)
    plan, record = state.run.plan, state.record
    named = f"{', '.join(hosts[:NODES_NAMED])}{', ...' if len(hosts) > NODES_NAMED else ''}"
    where = f"{named}: {up} of {plan.recorded_ranks} {plan.unit}s started" if hosts else f"{plan.size.nodes} requested"
    again = f", started {state.starts} times" if state.starts > 1 else ""
    attempts = f", attempt {len(record.attempts)}" if len(record.attempts) > 1 else ""
    eta = f", ETA {format_duration(state.eta)}" if state.eta else ""
    progress = last_words(state.metrics)
    rows = (
        ("run", f"{plan.run}  ->  {plan.run_directory}"),
        ("state", in_words(state)),
        ("job", f"{record.attempts[-1].name}{attempts}{again}" if record.attempts else ""),
        ("nodes", where),
        ("progress", f"{progress}{eta}" if progress else ""),
        ("hang", "" if record.exit else hangs.standing(state.run.path)),
        ("output", "" if record.exit or not with_output else _last_output(state)),
        ("note", state.status.note),
    )
    return "\n".join(f"{key:<10}{value}" for key, value in rows if value)


def _ranks(state: RunState) -> tuple[list[str], int]:
    """The nodes, and how many ranks have started."""
    started = [rank for rank in ranks.from_events(events.read_node_events(state.run.path)) if not rank.refusal]
    return list(state.record.nodes) or ranks.hosts(started), len(started)


def _last_output(state: RunState) -> str:
    """The last line of rank 0, and when it came."""
    log = state.run.path / run_files.rank_log(0, 0, state.run.plan.recorded_ranks)
    lines = [line for line in shared_files.last_lines(log) if line.strip()]
    with suppress(OSError):
        ago = format_duration(max(0.0, time.time() - log.stat().st_mtime))
        text = f"{ago} ago: {one_line(lines[-1])}" if lines else ""
        return text[: max(40, shutil.get_terminal_size().columns - 11)]
    return ""


def _as_data(state: RunState) -> dict[str, Any]:
    hosts, up = _ranks(state)
    plan, record = state.run.plan, state.record
    return {
        "run": plan.run,
        "run_directory": plan.run_directory,
        "state": state.word,
        "reason": record.exit.reason if record.exit else state.status.word,
        "exit_code": record.exit.code if record.exit else None,
        "note": state.status.note,
        "starts_at": state.status.starts_at,
        "job": record.attempts[-1].name if record.attempts else "",
        "attempts": len(record.attempts),
        "starts": state.starts,
        "nodes": hosts,
        "ranks": plan.recorded_ranks,
        "ranks_started": up,
        "elapsed_seconds": state.elapsed,
        "left_seconds": state.left,
        "eta_seconds": state.eta,
        "metrics": state.metrics,
        "hang": "" if record.exit else hangs.standing(state.run.path),
    }
