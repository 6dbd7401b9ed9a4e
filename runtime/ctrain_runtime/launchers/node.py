"""What launcher node adds to a task: one per node, whose command starts the node's ranks by a program of its own.

torchrun takes the values of options that are not given from PET_*: so those of all nodes make one world, wherever in a
script they are. For other programs the same is in plain variables.
"""

from __future__ import annotations

from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.plan.environment import NODE_IDENTITY
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.task import TaskIdentity

VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", *NODE_IDENTITY)


def exports(plan: LaunchPlan, identity: TaskIdentity) -> str:
    """The line that sets VARIABLES of a task, but those that it has from `identity`."""
    size = plan.size
    return f"export_node {size.nodes} {size.ranks_per_node} {size.gpus_per_node} {plan.run_key} {identity.hosts}"


def agent(plan: LaunchPlan) -> str:
    """Bash for a torchrun on each node whose ranks form the world of the plan. The rendezvous is static: ranks are
    numbered by node, as under every other launcher."""
    words = [
        *("python", "-m", "torch.distributed.run"),
        *(f"--nnodes={plan.size.nodes}", f"--nproc_per_node={plan.size.ranks_per_node}"),
        *([] if plan.program.has_attempts else [f"--rdzv_id={plan.run_key}"]),
    ]
    # Agents of another run, or of an earlier attempt, do not join, whatever their port.
    own = f'"--rdzv_id={plan.run_key}.$CTRAIN_ATTEMPT" ' if plan.program.has_attempts else ""
    known = '"--node_rank=$NODE_RANK" "--master_addr=$MASTER_ADDR" "--master_port=$MASTER_PORT" --no_python'
    return f"{quote_argv(words)} {own}{known}"
