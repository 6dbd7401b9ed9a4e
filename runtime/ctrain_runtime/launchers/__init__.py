"""Launchers: the scripts by which a task starts its ranks. One file per kind, behind one function."""

from __future__ import annotations

import dataclasses

from ctrain_runtime import layout
from ctrain_runtime.launchers import per_rank, spawners, staging
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.script import Task, TaskIdentity


def make_task(plan: LaunchPlan, identity: TaskIdentity) -> Task:
    """The task of a plan, for a scheduler whose tasks get their number and node by `identity`. Pure."""
    kinds = {
        "mpi": per_rank.make_task,
        "env": per_rank.make_task,
        "gloo": per_rank.make_task,
        "torchrun": spawners.torchrun,
        "mpirun": spawners.mpirun,
    }
    task = kinds[plan.launcher](plan, identity)
    if not plan.staging:
        return task
    scripts = {**task.scripts, layout.STAGE_SCRIPT: staging.stage_script(plan)}
    return dataclasses.replace(task, scripts=scripts, stage=layout.STAGE_SCRIPT)
