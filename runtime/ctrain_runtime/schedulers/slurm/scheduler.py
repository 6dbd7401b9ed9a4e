"""The Slurm back end: implements schedulers.protocol.Scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.plan.task import Task, TaskIdentity
from ctrain_runtime.schedulers import process
from ctrain_runtime.schedulers.protocol import FailedTask, OutOfMemory, Status
from ctrain_runtime.schedulers.slurm import client, facts, job, script, submit
from ctrain_runtime.site.model import Site


class Slurm:
    """Jobs of sbatch; inside an allocation, steps that a process of this machine starts and srun spreads."""

    programs: tuple[str, ...] = facts.COMMANDS
    short_options: Mapping[str, str] = {
        "-A": "account",
        "-C": "constraint",
        "-p": "partition",
        "-q": "qos",
        "-w": "nodelist",
        "-x": "exclude",
    }

    def facts(self, site: Site) -> Cluster:
        return facts.read_cluster()

    def gpus(self, site: Site) -> tuple[str, ...]:
        return facts.read_gpus()

    def hosts(self, nodelist: str) -> tuple[str, ...]:
        return client.expand_hosts(nodelist)

    def identity(self, plan: LaunchPlan) -> TaskIdentity:
        return script.identity(plan)

    def render(self, plan: LaunchPlan, task: Task) -> Launch:
        return script.render(plan, task)

    def check(self, launch: Launch) -> None:
        if not launch.plan.placement.allocation:
            submit.check(launch)

    def submit(self, launch: Launch, pass_fds: tuple[int, ...] = ()) -> str:
        if launch.plan.placement.allocation:
            return process.start(launch, pass_fds, client.allocation_environment())
        return submit.submit(launch, pass_fds)

    def interact(self, launch: Launch) -> int:
        is_step = bool(launch.plan.placement.allocation)
        return process.interact(launch, client.allocation_environment() if is_step else client.client_environment())

    def find(self, plan: LaunchPlan) -> Optional[str]:
        return None if plan.placement.allocation else submit.find(plan)

    def status(self, job_id: str, plan: LaunchPlan) -> Status:
        if plan.placement.allocation:
            return process.status_in_turn(job_id, plan)
        return job.read_status(job_id, plan)

    def cancel(self, job_id: str, plan: LaunchPlan) -> None:
        if plan.placement.allocation:
            process.cancel(job_id, Path(plan.run_directory))
        else:
            submit.cancel(job_id, plan)

    def name(self, job_id: str) -> str:
        return f"job {job_id}" if job_id.isdigit() else process.name(job_id)

    def failed_task(self, job_log: str) -> Optional[FailedTask]:
        return job.first_failed_task(job_log)

    def is_aftermath(self, line: str) -> bool:
        return job.is_aftermath(line)

    def out_of_memory(self, log: str) -> Optional[OutOfMemory]:
        return job.out_of_memory(log)
