"""Measure the network as the ranks of a job see it: collective operations of torch.distributed in an image.

  ctrain bench --nodes 2 --image pytorch                                   # all operations and sizes
  ctrain bench --nodes 2 --image pytorch --operations all-reduce --save    # what the preflight of each run expects

It is a run like any other, with NCCL on GPUs and Gloo without. 1 GB/s is 10^9 bytes per second. --save writes
`expected_bandwidth` to your own file of the site. See: ctrain help network
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from ctrain_runtime.base import run_files
from ctrain_runtime.base.text import format_size, table
from ctrain_runtime.cli import follow, run_options, run_view
from ctrain_runtime.cli.output import Writer
from ctrain_runtime.cli.progress import ASCII_BLOCKS, BLOCKS
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.errors import UsageError
from ctrain_runtime.payload import PREFLIGHT
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.site.files import save_key
from ctrain_runtime.site.select import site_names

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
SIZES = tuple(str(1 << power) for power in range(10, 29, 3))  # 1 kB to 268 MB
BAR_COLUMNS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--operations", default=",".join(OPERATIONS), metavar="NAME,...", help="what to measure (default: %(default)s)")
    add("--sizes", default=",".join(SIZES), metavar="BYTES,...", help="sizes of the arrays (default: %(default)s)")
    add("--save", action="store_true", help="make the largest all-reduce the bandwidth that runs on this site expect")
    add("--dry-run", action="store_true", help="print the plan and the scripts, run nothing")
    add("--json", action="store_true", help="print the measurements as JSON")
    run_options.add_arguments(parser, takes_job=False)


def execute(args: argparse.Namespace) -> int:
    operations, sizes = args.operations.split(","), args.sizes.split(",")
    _check(operations, sizes)
    if args.independent or args.launcher == "node":
        raise UsageError("bench measures ranks of one world", "Leave out --independent and --launcher node")
    request = run_options.request_of(args)
    program = f'TORCH_CPP_LOG_LEVEL=ERROR exec python3 -W ignore "$CTRAIN_RUN_DIR/{run_files.BENCH_PROGRAM}" "$@"'
    command = ("/bin/sh", "-c", program, "bench", ",".join(sizes), ",".join(operations))
    options = dataclasses.replace(request.options, command=command, launcher=args.launcher or "env")
    prepared = prepare(dataclasses.replace(request, job_name="bench", options=options))
    plan = prepared.launch.plan
    if args.save and (plan.size.nodes == 1 or not plan.placement.partition or "all-reduce" not in operations):
        raise UsageError("--save needs an all-reduce on several nodes", "Add: --nodes 2 --operations all-reduce")
    if args.save and plan.site not in site_names():
        raise UsageError(f"--save: {args.site} has no name of a site", "Add `expected_bandwidth` to that file yourself")
    text = (PREFLIGHT / run_files.BENCH_PROGRAM).read_text(encoding="utf-8")
    launch = dataclasses.replace(prepared.launch, scripts={**prepared.launch.scripts, run_files.BENCH_PROGRAM: text})
    prepared = dataclasses.replace(prepared, launch=launch)
    if args.dry_run:
        print(run_view.describe(prepared))
        return 0
    code = follow.start(prepared, request.site.reason, Terminal(sys.stderr if args.json else sys.stdout))
    lines = (Path(plan.run_directory) / run_files.BENCH).read_text().splitlines() if code == 0 else []
    results = [json.loads(line) for line in lines]
    if args.json:
        print(json.dumps({"run": plan.run_directory, "exit_code": code, "results": results}, indent=2))
    elif results:
        print("\n" + plot(results, BLOCKS if Writer(sys.stdout).can_show(BLOCKS) else ASCII_BLOCKS))
    if args.save and results:
        print(_save(plan.site, results), file=sys.stderr)
    return code


def plot(results: list[dict[str, Any]], blocks: str) -> str:
    """A bar per operation, its best bus bandwidth; the full length is the link's rate if that is known, else the best
    of all."""
    link, ranks, backend = (results[0][key] for key in ("link", "ranks", "backend"))
    best = {line["operation"]: line for line in sorted(results, key=lambda line: float(line["bus"]))}
    full = max(link, *(line["bus"] for line in results))
    rows = []
    for line in (best[name] for name in OPERATIONS if name in best):
        done = round(line["bus"] / full * BAR_COLUMNS)
        bar = blocks[0] * done + blocks[1] * (BAR_COLUMNS - done)
        share = f"{line['bus'] / link:.0%} of the link" if link else ""
        rows.append((line["operation"], format_size(line["size"]), bar, f"{format_size(line['bus'] * 1e9)}/s", share))
    known = f"; a node's links have {link:.3g} GB/s" if link else ""
    return f"best bus bandwidth of {ranks} ranks by {backend}{known}\n{table(rows[0], rows[1:])}"


def _check(operations: list[str], sizes: list[str]) -> None:
    for name in operations:
        if name not in OPERATIONS:
            raise UsageError(f"unknown operation {name!r}", f"Operations: {', '.join(OPERATIONS)}")
    for size in sizes:
        if not size.isdecimal() or int(size) < 1:
            raise UsageError(f"--sizes must be positive integers (bytes), not {size!r}", "As in: --sizes 1024,1048576")


def _save(site: str, results: list[dict[str, Any]]) -> str:
    line = max((line for line in results if line["operation"] == "all-reduce"), key=lambda line: int(line["size"]))
    path = save_key(site, "expected_bandwidth", {line["backend"]: float(f"{line['bus']:.3g}")})
    return f"{path}: expected_bandwidth.{line['backend']} is now {line['bus']:.3g} GB/s"
