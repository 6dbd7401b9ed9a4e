"""Which plans are watched for hangs: watch.py on each node, judge.py beside job.sh (payload/bash/hangs.bash)."""

from __future__ import annotations

from ctrain_runtime.base import run_files
from ctrain_runtime.plan.model import LaunchPlan


def files(plan: LaunchPlan) -> tuple[str, ...]:
    """What the watch needs in the run directory."""
    return (run_files.WATCH, run_files.JUDGE, run_files.STACKS_PREPARER) if plan.is_watched else ()


def start(plan: LaunchPlan) -> list[str]:
    """The line that starts the watch in the first task of each node, after its home is known; none without one."""
    if not plan.is_watched:
        return []
    per_node = plan.recorded_ranks // plan.watched_nodes
    return [f"start_watch {per_node} {plan.program.hang_after}"]
