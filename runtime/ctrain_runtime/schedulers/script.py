"""job.sh, which every scheduler runs on one host: its stages, its events, and how it outlives signals."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.engines import apptainer
from ctrain_runtime.errors import DataError, PreflightError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.store.lease import MAX_LEASE_SECONDS

PREFLIGHT = "preflight"  # the argument by which a task proves its world instead of running the program


@dataclass(frozen=True)
class Task:
    """What the scheduler starts `plan.tasks` times: the name of a script in the run directory. `scripts` maps the names
    of the scripts that it needs to their texts, and `files` are static ones (payload/). `stages` are scripts that each
    node runs once before, in this order."""

    script: str
    scripts: dict[str, str]
    files: tuple[str, ...] = (run_files.LIBRARY, run_files.INSIDE_SCRIPT)
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


def start_script(plan: LaunchPlan, script: str, *arguments: str) -> list[str]:
    """The argv of a script of the run directory on a node, for the scheduler's own launch command.

    A run directory that the node does not have would otherwise show as a missing file of bash's.
    """
    complaint = "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR"
    refusal = f'{{ echo "{complaint}" >&2; exit {DataError.exit_code}; }}'
    check = f'[ -r "$0" ] || {refusal}; shift; exec /bin/bash -p "$0" "$@"'
    return ["/bin/bash", "-p", "-c", check, f"{plan.run_directory}/{script}", plan.run_directory, *arguments]


def library(plan: LaunchPlan) -> str:
    """The lines of a script after which it can call the functions of ctrain.bash.

    Scripts run under `bash -p`: else BASH_ENV and functions of the caller's shell would run first (man bash, -p).
    """
    return f'run={shlex.quote(plan.run_directory)}\n. "$run/{run_files.LIBRARY}" || exit {DataError.exit_code}'


def job_script(
    plan: LaunchPlan,
    *,
    header: str,
    job_id: str,
    before: Iterable[str],
    start: str,
    stage_in: Iterable[str] = (),
    preflight: str = "",
) -> str:
    """The text of job.sh.

    `header` holds the scheduler's directives; `job_id` is bash for the job's id; `start` is one command that runs all
    tasks to their end; `before` are further lines, which may define end_tasks, by which these are asked to end.
    `stage_in` are commands that each copy a file to the nodes, as far as they can, and `preflight` is one that must
    succeed.
    """
    lines = [
        *([f"ct_lease={shlex.quote(plan.lease)}"] if plan.lease else []),
        f'begin_job "{job_id}"',
        *apptainer.load_modules(plan.engine, plan.modules),
        *before,
        "pass_signals_to_tasks",
        *(f"copy_to_nodes {command}" for command in stage_in),
        *([_preflight(plan, preflight)] if preflight else []),
        f"run_job {start}",
    ]
    return f"""\
#!/bin/bash -p
{header}# Run {plan.run}: prepares, starts the tasks, and writes how it ended, whoever watches.
{library(plan)}
{chr(10).join(lines)}
"""


def renew_lease(plan: LaunchPlan) -> list[str]:
    """The line by which a job, once it runs, limits the lease on its image to its own time."""
    return [f"renew_lease {plan.time_limit or MAX_LEASE_SECONDS // 60}"] if plan.lease else []


def _preflight(plan: LaunchPlan, command: str) -> str:
    check = plan.preflight
    code = str(PreflightError.exit_code) if not check or check.strict else ""
    advice = ""
    if plan.launcher == "mpi":  # MPI ends ranks that cannot start before they report anything
        advice = (
            ". If the image's MPI does not form one world here, pass --launcher gloo for Horovod, or env for programs"
            " without MPI"
        )
    return f"preflight {quote_argv([code, advice])} {command}"


def directives(prefix: str, options: list[str]) -> str:
    """Comment lines by which a scheduler reads its options, one per line, quoted."""
    return "".join(f"{prefix} {quote_argv([option])}\n" for option in options)
