"""A launch plan as bash runs it on this machine: all tasks as process groups below job.sh."""

from __future__ import annotations

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.schedulers.process import CANCEL_GRACE_SECONDS, GRACE_SECONDS, JOB_ID
from ctrain_runtime.schedulers.script import Task, TaskIdentity, job_script, library, start_script


def rendezvous(plan: LaunchPlan, address: str) -> str:
    """The line that exports the rendezvous of a run whose first task is on this machine; `address` is bash."""
    return f"set_rendezvous {address} {int(plan.run_key, 16) % 4536}"


def identity(plan: LaunchPlan) -> TaskIdentity:
    """The tasks of a group, which stands for a node, have the same NODE_RANK."""
    per_group = max(1, plan.ranks_per_node // plan.ranks_per_task)
    return TaskIdentity(started_by="ctrain", bash=f"identify_task {plan.tasks} {per_group}", hosts="echo localhost")


def render(plan: LaunchPlan, task: Task) -> Launch:
    meet = rendezvous(plan, "127.0.0.1")  # every rank is on this machine
    if plan.interactive:
        return on_terminal(plan, task, meet)
    stage_in = [quote_argv(["env", "CTRAIN_TASK=0", *start_script(plan, script)]) for script in task.stages]
    before = [meet, f"ct_grace={GRACE_SECONDS} ct_asked_grace={CANCEL_GRACE_SECONDS}"]
    start = f"tasks 0 {plan.tasks} {task.script}"
    text = job_script(plan, header="", job_id=JOB_ID, before=before, start=start, stage_in=stage_in)
    return Launch(plan, _argv(plan), {run_files.JOB_SCRIPT: text, **task.scripts}, task.files)


def on_terminal(plan: LaunchPlan, task: Task, before: str) -> Launch:
    """One task as a process of this machine, with its terminal."""
    start = quote_argv(["exec", *start_script(plan, task.script)])
    text = f"#!/bin/bash -p\n{library(plan)}\n{before}\nexport CTRAIN_TASK=0\n{start}\n"
    return Launch(plan, _argv(plan), {run_files.JOB_SCRIPT: text, **task.scripts}, task.files)


def _argv(plan: LaunchPlan) -> tuple[str, ...]:
    return "/bin/bash", "-p", f"{plan.run_directory}/{run_files.JOB_SCRIPT}"
