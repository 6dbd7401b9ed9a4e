"""Launchers: the scripts by which a task starts its ranks. One file per kind, behind one function."""

from __future__ import annotations

import dataclasses

from ctrain_runtime.base import run_files
from ctrain_runtime.launchers import gloo, per_rank, spawned_ranks, staging
from ctrain_runtime.launchers.fragments import passed
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.task import Task, TaskIdentity


def variables_of_tasks(plan: LaunchPlan, identity: TaskIdentity) -> tuple[str, ...]:
    """The variables of a task that pass into its container, besides those of the plan; PREFIX* stands for several."""
    identity = _passing(plan, identity)
    return (*passed(plan), *identity.passed, *(f"{prefix}*" for prefix in identity.passed_prefixes))


def _passing(plan: LaunchPlan, identity: TaskIdentity) -> TaskIdentity:
    """`identity` with the variables that pass into the containers of the plan's launcher."""
    if plan.program.launcher == "mpirun":
        # The scheduler's variables would make Open MPI start its daemons by the scheduler, which is not in the image.
        return identity.passing_only()
    if plan.program.independent or plan.program.launcher == "node":
        # Lightning, MPI and JAX take those of tasks for those of ranks.
        return dataclasses.replace(identity.passing_only(), passed=identity.job_variables)
    names = {"mpi": per_rank.OPEN_MPI_NAMES, "gloo": gloo.VARIABLES}
    return identity.passing(*names.get(plan.program.launcher, ()))


def make_task(plan: LaunchPlan, identity: TaskIdentity) -> Task:
    """The task of a plan, for a scheduler whose tasks get their number and node by `identity`. Pure."""
    kinds = {
        "mpi": per_rank.make_task,
        "env": per_rank.make_task,
        "gloo": per_rank.make_task,
        "node": per_rank.make_task,
        "torchrun": spawned_ranks.torchrun,
        "mpirun": spawned_ranks.mpirun,
    }
    task = kinds[plan.program.launcher](plan, _passing(plan, identity))
    stages = staging.scripts(plan, identity)
    preflight = [run_files.PREFLIGHT_SCRIPT] if plan.checks.preflight else []
    files = (*task.files, *(staging.FILES if stages else ()), *preflight)
    return dataclasses.replace(task, scripts={**task.scripts, **stages}, files=files, stages=tuple(stages))
