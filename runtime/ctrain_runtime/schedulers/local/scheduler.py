"""The back end of site local: no queue, no other machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from ctrain_runtime.cluster import machine
from ctrain_runtime.cluster.model import Cluster, Machine
from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.plan.task import Task, TaskIdentity
from ctrain_runtime.schedulers import process
from ctrain_runtime.schedulers.local import script
from ctrain_runtime.schedulers.protocol import FailedTask, OutOfMemory, Status
from ctrain_runtime.site.model import Site


class Local:
    """Implements Scheduler for this machine. "Nodes" are groups of ranks on it."""

    programs: tuple[str, ...] = ()
    short_options: Mapping[str, str] = {}

    def facts(self, site: Site) -> Cluster:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        scope = "this machine" if visible is None else f"this machine with CUDA_VISIBLE_DEVICES={visible!r}"
        return Cluster(machine=Machine(machine.count_visible_gpus(), len(os.sched_getaffinity(0)), scope))

    def gpus(self, site: Site) -> tuple[str, ...]:
        return machine.gpu_models()

    def hosts(self, nodelist: str) -> tuple[str, ...]:
        return ()

    def identity(self, plan: LaunchPlan) -> TaskIdentity:
        return script.identity(plan)

    def render(self, plan: LaunchPlan, task: Task) -> Launch:
        if plan.placement.options:
            problem = f"site local has no scheduler that could take {plan.placement.options[0]}"
            raise UsageError(problem, "Remove --scheduler-option, or select a cluster with --site")
        return script.render(plan, task)

    def check(self, launch: Launch) -> None:
        """Does nothing: there is no queue."""

    def submit(self, launch: Launch, pass_fds: tuple[int, ...] = ()) -> str:
        return process.start(launch, pass_fds)

    def interact(self, launch: Launch) -> int:
        try:
            return process.interact(launch, os.environ)
        finally:  # a background job of the shell
            process.kill_leftovers(Path(launch.plan.run_directory))

    def find(self, plan: LaunchPlan) -> Optional[str]:
        """None: a process that has started writes an event before it releases the lock of its submission."""
        return None

    def status(self, job_id: str, plan: LaunchPlan) -> Status:
        return process.status_in_turn(job_id, plan)

    def cancel(self, job_id: str, plan: LaunchPlan) -> None:
        process.cancel(job_id, Path(plan.run_directory))

    def name(self, job_id: str) -> str:
        return process.name(job_id)

    def failed_task(self, job_log: str) -> Optional[FailedTask]:
        return None

    def is_aftermath(self, line: str) -> bool:
        return False

    def out_of_memory(self, log: str) -> Optional[OutOfMemory]:
        """None: the kernel's counts, which the ranks record, are all the evidence here."""
        return None
