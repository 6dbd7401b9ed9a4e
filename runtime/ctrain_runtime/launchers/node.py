"""What launcher node adds to a task: one per node, whose command starts the node's ranks by a program of its own.

torchrun takes the values of options that are not given from PET_* (torch/distributed/argparse_util.py): so those of all
nodes make one world, wherever in a script they are. For other programs the same is in plain variables.
"""

from __future__ import annotations

from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.plan.environment import NODE_IDENTITY
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.script import TaskIdentity

VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", *NODE_IDENTITY)


def exports(plan: LaunchPlan, identity: TaskIdentity) -> str:
    """Bash that sets VARIABLES of a task, but those that it has from `identity`.

    The endpoint holds for the back end c10d, too, and before a master address that a script has made up.
    """
    return f"""\
export PET_NNODES={plan.nodes} PET_NODE_RANK=$NODE_RANK PET_NPROC_PER_NODE={plan.ranks_per_node}
export PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT
export PET_RDZV_ENDPOINT=$MASTER_ADDR:$MASTER_PORT PET_RDZV_ID={plan.run_key}
export CTRAIN_NODES={plan.nodes} CTRAIN_RANKS_PER_NODE={plan.ranks_per_node} CTRAIN_GPUS_PER_NODE={plan.gpus_per_node}
CTRAIN_HOSTS=$({identity.hosts} | paste -sd, -)
export CTRAIN_HOSTS"""


def agent(plan: LaunchPlan) -> str:
    """Bash for a torchrun on each node whose ranks form the world of the plan. The rendezvous is static: ranks are
    numbered by node, as under every other launcher."""
    words = [
        *("python", "-m", "torch.distributed.run"),
        *(f"--nnodes={plan.nodes}", f"--nproc_per_node={plan.ranks_per_node}"),
        f"--rdzv_id={plan.run_key}",  # agents of another run do not join, whatever their port
    ]
    known = '"--node_rank=$NODE_RANK" "--master_addr=$MASTER_ADDR" "--master_port=$MASTER_PORT" --no_python'
    return f"{quote_argv(words)} {known}"
