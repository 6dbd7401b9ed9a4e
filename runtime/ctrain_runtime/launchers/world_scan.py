"""Which plans have a scan: scan.py on each node, which looks who joins the world (payload/bash/world.bash)."""

from __future__ import annotations

from ctrain_runtime.base import run_files
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.task import TaskIdentity

MOST_HOSTS = 256  # whose addresses each of them asks for


def is_scanned(plan: LaunchPlan) -> bool:
    """Whether the ranks of a plan are meant to join one world, which is looked for."""
    program = plan.program
    several = plan.size.world_size > 1 or program.launcher == "node"
    return several and not program.independent and not program.interactive


def files(plan: LaunchPlan) -> tuple[str, ...]:
    """What the scan needs in the run directory."""
    return (run_files.SCAN,) if is_scanned(plan) else ()


def start(plan: LaunchPlan, identity: TaskIdentity) -> list[str]:
    """The line that starts the scan in the first task of each node; none without one."""
    if not is_scanned(plan):
        return []
    hosts = f" {identity.hosts}" if 1 < plan.size.nodes <= MOST_HOSTS and identity.hosts else ""
    return [f"start_scan {plan.program.launcher} {plan.size.nodes} {plan.size.ranks_per_node}{hosts}"]
