"""The contract between launchers and schedulers: what runs once per task, and how a task learns who it is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ctrain_runtime.base import run_files


@dataclass(frozen=True)
class Task:
    """What the scheduler starts `plan.tasks` times.

    `script`: the name of a script in the run directory; `scripts`: the texts of all scripts that it needs, by name;
    `files`: static ones (payload/). `stages`: scripts that each node runs once before, in this order.
    """

    script: str
    scripts: dict[str, str]
    files: tuple[str, ...] = (run_files.LIBRARY, run_files.INSIDE_SCRIPT, run_files.PROGRAM_MODULE)
    stages: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskIdentity:
    """How a task learns who it is.

    `bash` sets task, tasks, local_task, NODE_RANK, and exports MASTER_ADDR and MASTER_PORT: the rendezvous is the
    first node of what was started, not of the allocation around it. `mpi_bash` refuses what MPI could not work with,
    and adds to the array `binds`. `hosts` is a command that prints the names of the nodes. `passed` and
    `passed_prefixes` name the variables that pass into the container. `gpu_numbers` is the variable that has the node's
    numbers of the GPUs in CUDA_VISIBLE_DEVICES, which counts those of a cgroup from 0 ("": none, or they are the same).
    `job_variables` are about the job and its nodes alone: they pass into containers of tasks that are no ranks.
    """

    started_by: str
    bash: str
    mpi_bash: str = ""
    hosts: str = ""
    passed: tuple[str, ...] = ()
    passed_prefixes: tuple[str, ...] = ()
    gpu_numbers: str = ""
    job_variables: tuple[str, ...] = ()

    def passing(self, *names: str) -> TaskIdentity:
        """This one, with further variables that pass into the container."""
        return dataclasses.replace(self, passed=(*self.passed, *names))

    def passing_only(self) -> TaskIdentity:
        """This one, with none of the scheduler's variables passing into the container."""
        return dataclasses.replace(self, passed=(), passed_prefixes=())
