"""What a task has that belongs to no world: its number, and GPUs of its own."""

from __future__ import annotations

from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.plan.model import LaunchPlan

VARIABLES = ("CTRAIN_TASK", "CTRAIN_TASKS", "CTRAIN_NODE")
EXPORTS = "export CTRAIN_TASK=$task CTRAIN_TASKS=$tasks CTRAIN_NODE=$NODE_RANK"

GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def notes(plan: LaunchPlan) -> tuple[str, ...]:
    """Lines for the user: variables of the run that replace the GPUs of each task."""
    if not plan.program.independent or plan.tasks == 1:
        return ()
    given = [name for name in GPUS if plan.environment.variables.get(name) or name in plan.environment.passed]
    return tuple(f"all {plan.tasks} tasks have the same {name}; without it, each has GPUs of its own" for name in given)


def own_gpus(plan: LaunchPlan) -> list[str]:
    """The line that leaves a task its share of the node's GPUs.

    The variable is that of the image's GPUs, which are numbered from 0 where the scheduler does not set it; of an image
    for no known GPUs, those that the scheduler sets.
    """
    if not plan.size.gpus_per_node:
        return []
    name = "CUDA_VISIBLE_DEVICES" if plan.image.cuda else "ROCR_VISIBLE_DEVICES" if plan.image.rocm else ""
    every = ",".join(map(str, range(plan.size.gpus_per_node))) if name else ""
    names = [name] if name else ["CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"]
    return [quote_argv(["take_gpus", str(plan.size.ranks_per_node), every, *names])]
