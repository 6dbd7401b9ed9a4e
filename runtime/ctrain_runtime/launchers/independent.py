"""What a task has that belongs to no world: its number, and GPUs of its own."""

from __future__ import annotations

from ctrain_runtime.plan.model import LaunchPlan

VARIABLES = ("CTRAIN_TASK", "CTRAIN_TASKS", "CTRAIN_NODE")
EXPORTS = "export CTRAIN_TASK=$task CTRAIN_TASKS=$tasks CTRAIN_NODE=$NODE_RANK"


def own_gpus(plan: LaunchPlan) -> str:
    """Bash that leaves a task its share of the node's GPUs; tasks beyond their number share them in turn.

    The variable is that of the image's GPUs; where the scheduler does not set it, GPUs are numbered from 0.
    """
    if not plan.gpus_per_node:
        return ""
    name = "CUDA_VISIBLE_DEVICES" if plan.image.cuda else "ROCR_VISIBLE_DEVICES"
    if not plan.image.cuda and not plan.image.rocm:
        name = "ZE_AFFINITY_MASK"
    every = ",".join(map(str, range(plan.gpus_per_node)))
    return f"""\
IFS=, read -r -a devices <<<"${{{name}-{every}}}"
share=$((${{#devices[@]}} / {plan.ranks_per_node}))
((share)) || share=1
if ((${{#devices[@]}})); then
  first=$((local_task * share % ${{#devices[@]}}))
  printf -v devices '%s,' "${{devices[@]:first:share}}"
  export {name}=${{devices%,}}
fi
"""
