"""What users see about the world of a run that has ended: its certificate, and the lines to type."""

from __future__ import annotations

import shlex
from pathlib import Path

from ctrain_runtime.errors import WorldError
from ctrain_runtime.job import JOB_FILE
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run import world
from ctrain_runtime.run.record import Record


def closing(plan: LaunchPlan, record: Record) -> list[str]:
    """Lines below the end of a run; none if nobody has looked, or if it failed of something else."""
    if record.exit is None or record.exit.code not in (0, WorldError.exit_code):
        return []
    if record.exit.code:
        return _lines_to_type(plan, record.exit.reason) if record.exit.by == "ctrain" else []
    note = world.note(plan, record.world) if record.world else ""
    return [f"world: {note}"] if note else []


def _lines_to_type(plan: LaunchPlan, reason: str) -> list[str]:
    """torchrun alone takes its rendezvous from the variables of launcher node."""
    node = ("Let your command start the ranks of each node:", _again(plan, "--launcher", "node"))
    itself = ("Let ctrain start the ranks, not your script:", _again(plan, command=("python", "PROGRAM.py")))
    first = node if world.STARTS_BY_NODE in reason else itself
    lines = [first, ("Or say that they are meant to be apart:", _again(plan, "--independent"))]
    return [f"{text:<48}{line}" for text, line in lines]


def _again(plan: LaunchPlan, *options: str, command: tuple[str, ...] = ()) -> str:
    """The command line of the run with further options or another command; the dots are those that it had, as --image,
    of which the plan has only what became of them."""
    if (Path(plan.program.workdir) / JOB_FILE).is_file() and not command:
        return f"ctrain run {shlex.quote(plan.program.workdir)} ... {shlex.join(options)}"
    return " ".join(("ctrain run ...", *options, "--", shlex.join(command or plan.program.command)))
