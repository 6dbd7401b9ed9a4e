"""What a task has that belongs to no world: its number, and GPUs of its own."""

from __future__ import annotations

from ctrain_runtime.plan.model import LaunchPlan

VARIABLES = ("CTRAIN_TASK", "CTRAIN_TASKS", "CTRAIN_NODE")
EXPORTS = "export CTRAIN_TASK=$task CTRAIN_TASKS=$tasks CTRAIN_NODE=$NODE_RANK"

GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def notes(plan: LaunchPlan) -> tuple[str, ...]:
    """Lines for the user: variables of the run that replace the GPUs of each task."""
    if not plan.independent or plan.tasks == 1:
        return ()
    given = [name for name in GPUS if plan.environment.get(name) or name in plan.passed]
    return tuple(f"all {plan.tasks} tasks have the same {name}; without it, each has GPUs of its own" for name in given)


def own_gpus(plan: LaunchPlan) -> str:
    """Bash that leaves a task its share of the node's GPUs; tasks beyond their number share them in turn.

    The variable is that of the image's GPUs, which are numbered from 0 where the scheduler does not set it; of an image
    for no known GPUs, those that the scheduler sets.
    """
    if not plan.gpus_per_node:
        return ""
    names = "CUDA_VISIBLE_DEVICES" if plan.image.cuda else "ROCR_VISIBLE_DEVICES" if plan.image.rocm else ""
    every = ",".join(map(str, range(plan.gpus_per_node))) if names else ""
    return f"""\
names=({names or "CUDA_VISIBLE_DEVICES ZE_AFFINITY_MASK"})
for name in "${{names[@]}}"; do
  IFS=, read -r -a devices <<<"${{!name-{every}}}"
  ((${{#devices[@]}})) || continue
  share=$((${{#devices[@]}} / {plan.ranks_per_node}))
  ((share)) || share=1
  first=$((local_task * share % ${{#devices[@]}}))
  printf -v devices '%s,' "${{devices[@]:first:share}}"
  export "$name=${{devices%,}}"
done
"""
