"""Launchers whose tasks start several ranks from inside one container: torchrun on each node, mpirun on one host.

What they start is rank.sh, which finds out who it is, runs the program, and records how it ended.
"""

from __future__ import annotations

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.launchers import fragments, node, preflight, watching, world_scan
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.task import Task, TaskIdentity

TERMINATED = '[ -z "$ending" ] || [ "$code" != 0 ] || code=143'


def torchrun(plan: LaunchPlan, identity: TaskIdentity) -> Task:
    """One task per node."""
    who = "# RANK, LOCAL_RANK and WORLD_SIZE are torchrun's."
    return _task(plan, identity, "torchrun", node.agent(plan), who, is_patient=True)


def mpirun(plan: LaunchPlan, identity: TaskIdentity) -> Task:
    """One task in all, on one host: the image's own mpirun, which is there wherever MPI programs are."""
    agent = quote_argv(["mpirun", "-np", str(plan.size.world_size), "--bind-to", "none"])
    who = f"""\
export RANK=${{OMPI_COMM_WORLD_RANK:?}} WORLD_SIZE=${{OMPI_COMM_WORLD_SIZE:?}}
export LOCAL_RANK=$((RANK % {plan.size.ranks_per_node})) NODE_RANK=$((RANK / {plan.size.ranks_per_node}))"""
    return _task(plan, identity, "mpirun", agent, who, is_patient=False)


def _task(plan: LaunchPlan, identity: TaskIdentity, name: str, agent: str, who: str, *, is_patient: bool) -> Task:
    """`is_patient`: after SIGTERM, it lets its ranks end in their own time."""
    task = [
        fragments.head(plan, f"One task of {plan.run}, started by {identity.started_by}: {name} starts its ranks."),
        identity.bash,
        f"export NODE_RANK {fragments.sizes(plan)}",
        *world_scan.start(plan, identity),
        f"pass_signals_to_program {'pass_term' if is_patient else 'end_ranks'} warn_ranks",
        fragments.home(plan),
        *watching.start(plan),
        *fragments.container(plan, identity),
        *preflight.prove(plan, f"{agent} python3"),
        f'run_step "${{launch[@]}}" {agent} /bin/bash -p "$run/{run_files.RANK_SCRIPT}"',
        *([] if is_patient else [TERMINATED]),
        "leave",
        'exit "$code"\n',
    ]
    rank = [
        fragments.head(plan, f"One rank of {plan.run}, started by {name} in the container."),
        who,
        fragments.recorder(plan),
        fragments.world_check(plan, name),
        "pass_signals_to_program",
        *([] if is_patient else ["ct_spares_others=yes"]),
        f"run_rank {fragments.inside(plan)} {quote_argv(plan.program.command)}\n",
    ]
    scripts = {run_files.TASK_SCRIPT: "\n".join(task), run_files.RANK_SCRIPT: "\n".join(rank)}
    return Task(run_files.TASK_SCRIPT, scripts, (*Task.files, *world_scan.files(plan), *watching.files(plan)))
