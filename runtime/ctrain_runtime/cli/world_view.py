"""What users see about the world of a run that has ended: a doubt, and the lines to type."""

from __future__ import annotations

import shlex
from pathlib import Path

from ctrain_runtime.errors import WorldError
from ctrain_runtime.job import JOB_FILE
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run import world
from ctrain_runtime.run.record import Record


def closing(plan: LaunchPlan, record: Record) -> list[str]:
    """Lines below the end of a run; none if its world was joined, or if it failed of something else."""
    if record.exit is None or record.exit.code not in (0, WorldError.exit_code):
        return []
    if record.exit.code:
        return _lines_to_type(plan) if record.exit.by == "ctrain" else []
    doubt = world.doubt(record.world, Path(plan.run_directory)) if record.world else ""
    if not doubt:
        return []
    nested = record.world is not None and record.world.state == world.NESTED and plan.launcher != "node"
    return [f"world: {doubt}", *(_lines_to_type(plan) if nested else [])]


def _lines_to_type(plan: LaunchPlan) -> list[str]:
    node, apart = _again(plan, "--launcher", "node"), _again(plan, "--independent")
    return [
        f"Let your command start the ranks of each node:  {node}",
        f"Or say that they are meant to be apart:         {apart}",
    ]


def _again(plan: LaunchPlan, *options: str) -> str:
    """The command line of the run, as far as the plan tells, with further options."""
    nodes = ["--nodes", str(plan.nodes)] if plan.nodes > 1 else []
    if (Path(plan.workdir) / JOB_FILE).is_file():
        return shlex.join(["ctrain", "run", plan.workdir, *nodes, *options])
    return shlex.join(["ctrain", "run", *nodes, *options, "--", *plan.command])
