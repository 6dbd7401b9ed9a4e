"""Runs a job on the nodes of a cluster, or on this machine.

  ctrain run resnet50 --nodes 2                                  a packaged job
  ctrain run ./my_experiment --nodes 4                           a folder with a job.yaml
  ctrain run --nodes 2 --image pytorch -- python train.py ...    any command, in the current folder

What follows -- goes to the program. Ctrl-C cancels the job. The exit code is the program's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Optional

from ctrain_runtime import facts, image, job, site, trust, user_layer
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.stores import open_stores
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.cli.text import count
from ctrain_runtime.errors import ImageNotFound, UsageError
from ctrain_runtime.plan.make import make
from ctrain_runtime.plan.model import Launch, LaunchPlan, Options
from ctrain_runtime.run import directory, session
from ctrain_runtime.schedulers import start

LAST_LINES = 8
IMAGE = "CTRAIN_IMAGE"  # set by module files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", help="a packaged job, or ./FOLDER with a job.yaml")
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes")
    parser.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs of each node (default: all)")
    parser.add_argument("--ranks-per-node", type=int, metavar="N", help="ranks on each node (default: one a GPU)")
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help="NAME[:CHANNEL|:VERSION], NAME@DIGEST or the path of a .sif (default: CTRAIN_IMAGE, then the job's)",
    )
    parser.add_argument(
        "--layer", action="append", default=[], type=Path, metavar="FILE", help="user layer over the image (repeatable)"
    )
    parser.add_argument("--store", metavar="DIR", help="store to look in (default: CTRAIN_STORE, then the site's)")
    parser.add_argument("--site", metavar="SITE", help="name or file of a site (default: CTRAIN_SITE, then detected)")
    parser.add_argument("--partition", default="", metavar="PARTITION", help="partition of the cluster")
    parser.add_argument("--time", default="", metavar="LIMIT", help="time limit, as in 2:00:00")
    parser.add_argument("--comment", default="", metavar="TEXT", help="comment for sbatch, mandatory on some sites")
    parser.add_argument("--data", default="", metavar="DIR", help="folder with the data set, mounted read-only")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="variable for the program")
    parser.add_argument("--mount", action="append", default=[], metavar="SRC[:DST[:ro]]", help="folder to show inside")
    parser.add_argument("--resume", default="", metavar="RUN", help="run directory whose checkpoint to go on from")
    parser.add_argument(
        "--runs", metavar="DIR", help="where run directories are made (default: CTRAIN_RUNS, the site's)"
    )
    parser.add_argument("--name", default="", help="name of the run (default: the job's and the time)")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and the scripts, run nothing")
    parser.add_argument("--json", action="store_true", help="print the plan or the record as JSON")


def execute(args: argparse.Namespace) -> int:
    chosen = site.choose(args.site or os.environ.get("CTRAIN_SITE", ""))
    launch = start.prepare(_plan(args, chosen.site))
    directory.check(launch.plan)
    if args.dry_run:
        print(json.dumps(directory.as_data(launch), indent=2) if args.json else _describe(launch, args))
        return 0
    terminal = Terminal(sys.stderr if args.json else sys.stdout)
    terminal.show(_summary(launch.plan, chosen.why, args))
    with _signals_cancel():
        outcome = session.run(launch, terminal)
    terminal.close()
    if args.json:
        print_line(json.dumps(dataclasses.asdict(outcome.record), indent=2))
    else:
        print_line(_ending(launch.plan, outcome, terminal.step))
    return outcome.record.exit.code if outcome.record.exit else 1


def _plan(args: argparse.Namespace, where: site.Site) -> LaunchPlan:
    what = _job(args)
    references = _references(args, what)
    stores = [] if image.is_path(references[0]) else open_stores(args.store, where)
    try:
        found = image.find(references, stores, platform.machine())
    except ImageNotFound as error:
        raise ImageNotFound(f"{error.message}{_source(args)}", error.hint) from error
    trust.require(found, where)  # first: to find out about the engine starts a container of it
    known = facts.this_machine(start.cluster(where), found)
    flat = image.flattened(found) if known.ignores_layers else None
    if flat:
        image.check(flat, platform.machine())
        trust.require(flat, where)
    parent = Path(site.expand(args.runs or os.environ.get("CTRAIN_RUNS") or where.runs, f"site {where.name}: runs"))
    options = Options(
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        ranks_per_node=args.ranks_per_node,
        partition=args.partition,
        time=args.time,
        comment=args.comment,
        data=str(Path(args.data).resolve()) if args.data else "",
        env=tuple(args.env),
        mounts=tuple(map(_absolute, args.mount)),
        arguments=tuple(args.rest) if args.job else (),
        resume=str(directory.checkpoint_of(Path(args.resume))) if args.resume else "",
        layers=tuple(map(user_layer.read, (*what.layers, *args.layer))),
    )
    return make(what, where, found, options, known, directory.choose(parent.resolve(), what.name, args.name), flat)


def _job(args: argparse.Namespace) -> job.Job:
    return job.find(args.job) if args.job else job.from_command(tuple(args.rest), Path.cwd())


def _references(args: argparse.Namespace, what: job.Job) -> tuple[str, ...]:
    named = args.image or os.environ.get(IMAGE)
    references = (named,) if named else what.images
    if not references:
        raise UsageError("a command needs an image", "Give one with --image; ctrain images lists them")
    return references


def _source(args: argparse.Namespace) -> str:
    """What to say of an image that the command line does not name: a module that is loaded may be long forgotten."""
    return f" (from {IMAGE})" if os.environ.get(IMAGE) and not args.image else ""


def _absolute(mount: str) -> str:
    source, colon, rest = mount.partition(":")
    return f"{Path(source).expanduser().resolve()}{colon}{rest}"


@contextmanager
def _signals_cancel() -> Iterator[None]:
    """SIGTERM cancels the run as Ctrl-C does; without this the job would go on with nobody to record it."""

    def interrupt(_signal: int, _frame: Optional[FrameType]) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _summary(plan: LaunchPlan, why: str, args: argparse.Namespace) -> str:
    channel = f" ({plan.image.channel})" if plan.image.channel else ""
    stands_in = ""
    if plan.image.instead_of:
        stands_in = f", flattened, in place of {plan.image.instead_of}: this engine ignores overlay partitions"
    name = f"{plan.image.name} {plan.image.version}{channel}"
    data = [mount for mount in plan.mounts if mount.read_only]
    rows = [
        ("site", f"{plan.site} ({why})"),
        ("image", f"{name}  {plan.image.digest[:19]}{_source(args)}{stands_in}"),
        *(("layer", f"{layer.path}  {layer.digest[:19]}") for layer in plan.layers),
        ("where", _where(plan)),
        *(("data", f"{mount.source} -> {mount.target} (read-only)") for mount in data),
        ("run", f"{plan.run}  ->  {plan.run_directory}"),
    ]
    return "\n".join(f"{key:<10}{value}" for key, value in rows)


def _where(plan: LaunchPlan) -> str:
    ranks = f"{count(plan.world_size, 'rank')}, launcher {plan.launcher}" + (f" ({plan.mpi})" if plan.mpi else "")
    if plan.scheduler == "local":
        return f"this machine: {count(plan.nodes, 'group')} of {plan.ranks_per_node}; {ranks}"
    gpus = f"{count(plan.gpus_per_node, 'GPU')} a node, " if plan.gpus_per_node else ""
    inside = f" in allocation {plan.allocation}" if plan.allocation else ""
    return f"{plan.nodes} x {plan.partition}{inside}: {gpus}{count(plan.cpus_per_rank, 'core')} a rank; {ranks}"


def _describe(launch: Launch, args: argparse.Namespace) -> str:
    plan = launch.plan
    parts = [
        _summary(plan, "dry run: nothing is started", args),
        "command   " + " ".join(launch.argv),
        *(f"mount     {mount}" for mount in plan.mounts),
        *(f"env       {name}={value}" for name, value in plan.environment.items()),
        *(f"\n--- {name}\n{text.rstrip()}" for name, text in launch.scripts.items()),
    ]
    return "\n".join(parts)


def _ending(plan: LaunchPlan, outcome: session.Outcome, step: Optional[int]) -> str:
    """The last lines of a run; the very last one is always the run directory."""
    ended = outcome.record.exit
    lines = []
    if ended and ended.reason == "cancelled":
        lines.append(f"cancelled {outcome.record.scheduled_as}" + (f" at step {step}" if step else ""))
        if any((Path(plan.run_directory) / directory.CHECKPOINT).iterdir()):
            lines.append(f"its checkpoint is kept; go on from it with: --resume {plan.run_directory}")
    elif ended and ended.code != 0:
        lines.append(ended.reason)
        if outcome.failed:
            log = directory.rank_log(plan, outcome.failed.number)
            lines += [f"  | {line}" for line in _last_lines(log)]
            others = plan.world_size - 1
            lines.append(f"its log: {log}" + (f"; {count(others, 'other rank')} stopped" if others else ""))
        lines.append(f"exit code {ended.code}")
    lines.append(f"run directory: {plan.run_directory}")
    return "\n".join(lines)


def _last_lines(log: Path) -> list[str]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return [line for line in lines if line.strip()][-LAST_LINES:]
