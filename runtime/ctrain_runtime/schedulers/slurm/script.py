"""A launch plan as Slurm runs it: job.sh by sbatch, or by bash inside an allocation; the tasks by srun."""

from __future__ import annotations

import shlex

from ctrain_runtime.base import run_files, time_limit
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.plan.task import Task, TaskIdentity
from ctrain_runtime.schedulers import process
from ctrain_runtime.schedulers.script import (
    PREFLIGHT,
    directives,
    job_script,
    renew_lease,
    start_script,
)
from ctrain_runtime.schedulers.slurm.options import asks_for_gpus, gres, passed_options, require_one_line

KILL_SECONDS = 30  # between SIGTERM and SIGKILL in an allocation, as Slurm's KillWait

# What scripts for one node ask for; by none of them does a library take tasks for ranks.
JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NODEID", "SLURM_GPUS_ON_NODE")


def identity(plan: LaunchPlan) -> TaskIdentity:
    salt = int(plan.run_key, 16) % 4536
    return TaskIdentity(
        started_by="srun",
        hosts="slurm_hosts",
        bash=quote_argv(["identify_slurm_task", str(salt), *([plan.address_suffix] if plan.address_suffix else [])]),
        mpi_bash="need_pmix" if plan.mpi.startswith("pmix") else "",
        passed_prefixes=("SLURM_", "PMIX_", "PMI_"),
        job_variables=JOB_VARIABLES,
        gpu_numbers="SLURM_STEP_GPUS",  # man srun, OUTPUT ENVIRONMENT VARIABLES
    )


def render(plan: LaunchPlan, task: Task) -> Launch:
    """The scripts and the command that starts them: sbatch, or bash in the allocation that the user already has; srun,
    if the user's terminal is the job's."""
    if plan.interactive:
        return Launch(plan, (*_srun_terminal(plan), *start_script(plan, task.script)), task.scripts, task.files)
    job = f"{plan.run_directory}/{run_files.JOB_SCRIPT}"
    argv = ("/bin/bash", "-p", job) if plan.allocation else ("sbatch", "--parsable", job)
    text = job_script(
        plan,
        header=directives("#SBATCH", [require_one_line(option) for option in _options(plan)]),
        job_id=process.JOB_ID if plan.allocation else "$SLURM_JOB_ID",
        before=_before(plan),
        start=quote_argv([*_srun(plan), *start_script(plan, task.script)]),
        stage_in=(quote_argv([*_srun_per_node(plan), *start_script(plan, script)]) for script in task.stages),
        preflight=quote_argv([*_srun(plan), *start_script(plan, task.script, PREFLIGHT)]) if plan.preflight else "",
    )
    return Launch(plan, argv, {run_files.JOB_SCRIPT: text, **task.scripts}, task.files)


def _options(plan: LaunchPlan) -> list[str]:
    return [
        *_resources(plan),
        f"--output={plan.run_directory.replace('%', '%%')}/{run_files.JOB_LOG}",  # sbatch expands a lone %
        "--no-requeue",  # a second start would mix its records with those of the first
        *_requested(plan),
    ]


def _resources(plan: LaunchPlan) -> list[str]:
    return [
        f"--job-name={plan.run}",
        *([f"--partition={plan.partition}"] if "partition" not in plan.not_requested else []),
        f"--nodes={plan.nodes}",
        f"--ntasks={plan.tasks}",
        f"--ntasks-per-node={plan.tasks_per_node}",
        f"--cpus-per-task={plan.cpus_per_task}",
        *gres(plan),
        *([f"--mem={plan.memory}M"] if plan.memory is not None and "mem" not in plan.settings else []),
        f"--time={'UNLIMITED' if plan.time_limit is None else time_limit.format_limit(plan.time_limit)}",
        f"--chdir={plan.run_directory}",
    ]


def _requested(plan: LaunchPlan) -> list[str]:
    return [*(f"--{name}={value}" for name, value in plan.settings.items()), *passed_options(plan)]


def _srun(plan: LaunchPlan) -> list[str]:
    """The step of all tasks. Ranks take the node's cores in order, which is how GPUs are numbered over sockets."""
    return [
        *("srun", f"--job-name={plan.run}", f"--nodes={plan.nodes}", f"--ntasks={plan.tasks}"),
        *(f"--ntasks-per-node={plan.tasks_per_node}", f"--cpus-per-task={plan.cpus_per_task}"),
        *([f"--gres=gpu:{plan.gpus_per_node}"] if plan.allocation and asks_for_gpus(plan) else []),
        *([f"--mem={plan.memory}M"] if plan.allocation and plan.memory is not None else []),
        *(["--overlap"] if plan.in_step else []),
        "--distribution=block:block",
        *([f"--cpu-bind={plan.cpu_bind}"] if plan.cpu_bind else []),
        *(f"--mpi={plan.mpi or 'none'}", "--kill-on-bad-exit=1", "--quit-on-interrupt"),
    ]


def _srun_terminal(plan: LaunchPlan) -> list[str]:
    """A step of one task on the user's terminal; it shares an allocation with whatever runs there, else it gets one."""
    step = ["--pty", "--mpi=none", *([f"--cpu-bind={plan.cpu_bind}"] if plan.cpu_bind else [])]
    if not plan.allocation:
        return ["srun", *step, *_resources(plan), *_requested(plan)]
    size = ["--overlap", "--nodes=1", "--ntasks=1", f"--cpus-per-task={plan.cpus_per_task}"]
    gpus = [f"--gres=gpu:{plan.gpus_per_node}"] if asks_for_gpus(plan) else []
    return ["srun", *step, *size, *gpus]


def _srun_per_node(plan: LaunchPlan) -> list[str]:
    """A step of one small task on each node, which all end in their own time."""
    return [
        *("srun", f"--job-name={plan.run}", f"--nodes={plan.nodes}", f"--ntasks={plan.nodes}"),
        *("--ntasks-per-node=1", "--cpus-per-task=1", "--distribution=block"),
        *("--overlap", "--mpi=none", "--kill-on-bad-exit=0"),
    ]


def _before(plan: LaunchPlan) -> list[str]:
    """The allocation's shell differs from the ranks; the image is needed for the job's time; and the preflight names
    nodes that never answer."""
    force = f"; force_end {KILL_SECONDS}" if plan.allocation else ""
    return [
        *(["leave_login_node"] if plan.allocation else []),
        *([f'scontrol show hostnames "$SLURM_JOB_NODELIST" >"$run/{run_files.HOSTS}"'] if plan.preflight else []),
        *renew_lease(plan),
        f"end_tasks() {{ end_slurm_steps {shlex.quote(plan.run)}{force}; }}",
    ]
