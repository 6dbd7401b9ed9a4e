"""A launch plan as bash runs it on this machine: all tasks as process groups below job.sh."""

from __future__ import annotations

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.plan.task import Task, TaskIdentity
from ctrain_runtime.schedulers.process import CANCEL_GRACE_SECONDS, GRACE_SECONDS, JOB_ID
from ctrain_runtime.schedulers.script import job_argv, job_script, on_terminal, rendezvous, start_script


def identity(plan: LaunchPlan) -> TaskIdentity:
    """The tasks of a group, which stands for a node, have the same NODE_RANK."""
    per_group = max(1, plan.size.ranks_per_node // plan.ranks_per_task)
    return TaskIdentity(started_by="ctrain", bash=f"identify_task {plan.tasks} {per_group}", hosts="echo localhost")


def render(plan: LaunchPlan, task: Task) -> Launch:
    meet = rendezvous(plan, "127.0.0.1")  # every rank is on this machine
    if plan.program.interactive:
        return on_terminal(plan, task, meet)
    stage_in = [quote_argv(["env", "CTRAIN_TASK=0", *start_script(plan, script)]) for script in task.stages]
    before = [meet, f"ct_grace={GRACE_SECONDS} ct_asked_grace={CANCEL_GRACE_SECONDS}"]
    start = f"tasks 0 {plan.tasks} {task.script}"
    text = job_script(plan, header="", job_id=JOB_ID, before=before, start=start, stage_in=stage_in)
    return Launch(plan, job_argv(plan), {run_files.JOB_SCRIPT: text, **task.scripts}, task.files)
