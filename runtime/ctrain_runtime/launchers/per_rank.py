"""Launchers mpi, env and gloo: the scheduler starts one task per rank, and each runs the program in a container. So do
independent tasks, which are no ranks of a world, and launcher node, with one task per node."""

from __future__ import annotations

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.launchers import fragments, gloo, independent, node, preflight, watching, world_scan
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.task import Task, TaskIdentity

# Many programs ask these for their rank: mpirun of Open MPI sets them (man mpirun), srun does not.
OPEN_MPI_NAMES = tuple(f"OMPI_COMM_WORLD_{word}" for word in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))

ONE_OF = {"rank": "rank of ", "task": "independent task of ", "node": "node's command of "}


def make_task(plan: LaunchPlan, identity: TaskIdentity) -> Task:
    """One rank: it finds out who it is, runs the program, and records how it ended.

    Of launcher node, and where ranks are independent, RANK is the number in logs and events, which the program does not
    see.
    """
    mpi, horovod = plan.program.launcher == "mpi", plan.program.launcher == "gloo"
    serve = '"${ct_serve[@]}" ' if horovod else ""
    text = [
        fragments.head(plan, f"One {ONE_OF[plan.unit]}{plan.run}, started by {identity.started_by}."),
        identity.bash,
        *_who(plan, identity),
        *(["export_open_mpi"] if mpi else []),
        *([] if plan.program.interactive else [fragments.recorder(plan)]),
        fragments.world_check(plan, identity.started_by),
        *([identity.mpi_bash] if mpi and identity.mpi_bash else []),
        *([gloo.join(plan)] if horovod else []),
        *world_scan.start(plan, identity),
        "pass_signals_on_terminal" if plan.program.interactive else "pass_signals_to_program",
        fragments.home(plan),
        *watching.start(plan),
        *fragments.container(plan, identity),
        *_preflight(plan),
        f'run_rank "${{launch[@]}}" {fragments.inside(plan)} {serve}{quote_argv(plan.program.command)}',
        "",
    ]
    more = (*world_scan.files(plan), *watching.files(plan), *([run_files.RENDEZVOUS] if horovod else []))
    return Task(run_files.TASK_SCRIPT, {run_files.TASK_SCRIPT: "\n".join(text)}, (*Task.files, *more))


def _who(plan: LaunchPlan, identity: TaskIdentity) -> list[str]:
    if not plan.program.independent and plan.program.launcher != "node":
        return [f"export RANK=$task WORLD_SIZE=$tasks LOCAL_RANK=$local_task NODE_RANK {fragments.sizes(plan)}"]
    known = node.exports(plan, identity) if plan.program.launcher == "node" else independent.EXPORTS
    return [
        "export -n RANK WORLD_SIZE LOCAL_RANK",
        "RANK=$task WORLD_SIZE=$tasks",
        f"export NODE_RANK {fragments.sizes(plan)}",
        known,
    ]


def _preflight(plan: LaunchPlan) -> list[str]:
    if plan.program.launcher != "node":
        return preflight.prove(plan)
    return preflight.prove(plan, f"{node.agent(plan)} python3", needs_torch=True)
