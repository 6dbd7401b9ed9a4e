"""The PBS back end: implements schedulers.protocol.Scheduler."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from ctrain_runtime.cluster.groups import gpu_types
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.errors import CtrainError, UnansweredSubmission
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.plan.task import Task, TaskIdentity
from ctrain_runtime.schedulers import process
from ctrain_runtime.schedulers.pbs import facts, job, script, submit
from ctrain_runtime.schedulers.protocol import FailedTask, OutOfMemory, Status
from ctrain_runtime.site.model import Site


class Pbs:
    """Jobs of qsub; inside an allocation, a process of this machine. mpiexec or TM spreads their tasks."""

    programs: tuple[str, ...] = facts.COMMANDS
    short_options: Mapping[str, str] = {"-A": "account", "-q": "partition"}

    def facts(self, site: Site) -> Cluster:
        return facts.read_cluster(site)

    def gpus(self, site: Site) -> tuple[str, ...]:
        return gpu_types(facts.read_cluster(site).partitions)

    def hosts(self, nodelist: str) -> tuple[str, ...]:
        return ()

    def identity(self, plan: LaunchPlan) -> TaskIdentity:
        return script.identity(plan)

    def render(self, plan: LaunchPlan, task: Task) -> Launch:
        return script.render(plan, task)

    def check(self, launch: Launch) -> None:
        """Does nothing: PBS has no test without queueing."""

    def submit(self, launch: Launch, pass_fds: tuple[int, ...] = ()) -> str:
        submit.write_environment(launch.plan)
        start = process.start if launch.plan.placement.allocation else submit.submit
        try:
            return start(launch, pass_fds)
        except UnansweredSubmission:  # the job may start, and need it
            raise
        except CtrainError:
            submit.remove_environment(launch.plan)
            raise

    def interact(self, launch: Launch) -> int:
        try:
            return process.interact(launch, os.environ)
        finally:  # a background job of the shell
            process.kill_leftovers(Path(launch.plan.run_directory))

    def find(self, plan: LaunchPlan) -> Optional[str]:
        return None if plan.placement.allocation else submit.find(plan)

    def status(self, job_id: str, plan: LaunchPlan) -> Status:
        return process.status_in_turn(job_id, plan) if plan.placement.allocation else job.read_status(job_id, plan)

    def cancel(self, job_id: str, plan: LaunchPlan) -> None:
        if plan.placement.allocation:
            process.cancel(job_id, Path(plan.run_directory))
        else:
            submit.cancel(job_id, plan)
        submit.remove_environment(plan)

    def name(self, job_id: str) -> str:
        return process.name(job_id) if ":" in job_id else f"job {job_id.partition('.')[0]}"

    def failed_task(self, job_log: str) -> Optional[FailedTask]:
        return job.first_failed_task(job_log)

    def is_aftermath(self, line: str) -> bool:
        return bool(job.first_failed_task(line))

    def out_of_memory(self, log: str) -> Optional[OutOfMemory]:
        return job.out_of_memory(log)
