"""Launchers mpi, env and gloo: the scheduler starts one task per rank, and each runs the program in a container. So do
independent tasks, which are no ranks of a world, and launcher node, with one task per node."""

from __future__ import annotations

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.launchers import fragments, gloo, independent, node, preflight, world_scan
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.script import Task, TaskIdentity

# Many programs ask these for their rank: mpirun of Open MPI sets them (man mpirun), srun does not.
OPEN_MPI = """\
export OMPI_COMM_WORLD_RANK=$RANK OMPI_COMM_WORLD_SIZE=$WORLD_SIZE
export OMPI_COMM_WORLD_LOCAL_RANK=$LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE={local_size}"""
OPEN_MPI_NAMES = tuple(f"OMPI_COMM_WORLD_{word}" for word in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))

ONE_OF = {"rank": "rank of ", "task": "independent task of ", "node": "node's command of "}


def make_task(plan: LaunchPlan, identity: TaskIdentity) -> Task:
    """One rank: finds out who it is, runs the program, and records how it ended. Of launcher node, and where ranks are
    independent, RANK is the number in logs and events, which the program does not see."""
    mpi, horovod = plan.launcher == "mpi", plan.launcher == "gloo"
    serve = '"${serve[@]}" ' if horovod else ""
    check = quote_argv(fragments.checked_command(plan, []))
    text = [
        fragments.head(plan, f"One {ONE_OF[plan.unit]}{plan.run}, started by {identity.started_by}."),
        "binds=()",
        identity.bash,
        *_who(plan, identity),
        *([OPEN_MPI.format(local_size=plan.ranks_per_node)] if mpi else []),
        *([] if plan.interactive else [fragments.unless_preflight(plan, fragments.recorder(plan))]),
        fragments.world_check(plan, identity.started_by),
        *([identity.mpi_bash] if mpi else []),
        *([fragments.unless_preflight(plan, gloo.join(plan))] if horovod else []),
        *world_scan.start(plan, identity),
        fragments.pass_signals(interactive=plan.interactive),
        fragments.home(plan),
        fragments.container(plan, identity),
        *([_preflight(plan)] if plan.preflight else []),
        f"launch+=({check} {serve}{quote_argv(plan.command)})",
        fragments.run_recorded(before=f"{world_scan.end(plan)}leave\n"),
    ]
    programs = {run_files.RENDEZVOUS: gloo.SERVER.read_text(encoding="utf-8")} if horovod else {}
    return Task(run_files.TASK_SCRIPT, {run_files.TASK_SCRIPT: "\n".join(text), **programs})


def _who(plan: LaunchPlan, identity: TaskIdentity) -> list[str]:
    if not plan.independent and plan.launcher != "node":
        return ["export RANK=$task WORLD_SIZE=$tasks LOCAL_RANK=$local_task NODE_RANK"]
    known = node.exports(plan, identity) if plan.launcher == "node" else independent.EXPORTS
    return ["export -n RANK WORLD_SIZE LOCAL_RANK", "RANK=$task WORLD_SIZE=$tasks", "export NODE_RANK", known]


def _preflight(plan: LaunchPlan) -> str:
    if plan.launcher != "node":
        return preflight.prove(plan)
    return preflight.prove(plan, f"{node.agent(plan)} python3", needs_torch=True)
