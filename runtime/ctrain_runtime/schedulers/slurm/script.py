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
    dependency,
    directives,
    job_script,
    renew_lease,
    start_script,
)
from ctrain_runtime.schedulers.slurm.options import asks_for_gpus, constraint, gres, passed_options, require_one_line

RETRIES = "ct_find_cause=slurm_cause ct_queue_again=requeue_slurm_job"
RETRIES += " ct_leave_out=leave_out_slurm_nodes ct_last_job=keep_slurm_job"
KILL_SECONDS = 30  # between SIGTERM and SIGKILL in an allocation, as Slurm's KillWait

# What scripts for one node ask for; by none of them does a library take tasks for ranks.
JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NODEID", "SLURM_GPUS_ON_NODE")


def identity(plan: LaunchPlan) -> TaskIdentity:
    salt, suffix = int(plan.run_key, 16) % 4536, plan.placement.address_suffix
    return TaskIdentity(
        started_by="srun",
        hosts="slurm_hosts",
        bash=quote_argv(["identify_slurm_task", str(salt), *([suffix] if suffix else [])]),
        mpi_bash="need_pmix" if plan.program.mpi.startswith("pmix") else "",
        passed_prefixes=("SLURM_", "PMIX_", "PMI_"),
        job_variables=JOB_VARIABLES,
        gpu_numbers="SLURM_STEP_GPUS",  # man srun, OUTPUT ENVIRONMENT VARIABLES
    )


def render(plan: LaunchPlan, task: Task) -> Launch:
    """The scripts and the command that starts them: sbatch, or bash in the allocation that the user already has; srun,
    if the user's terminal is the job's."""
    if plan.program.interactive:
        return Launch(plan, (*_srun_terminal(plan), *start_script(plan, task.script)), task.scripts, task.files)
    job = f"{plan.run_directory}/{run_files.JOB_SCRIPT}"
    argv = ("/bin/bash", "-p", job) if plan.placement.allocation else ("sbatch", "--parsable", job)
    srun = _srun(plan)
    text = job_script(
        plan,
        header=directives("#SBATCH", [require_one_line(option) for option in _options(plan)]),
        job_id=process.JOB_ID if plan.placement.allocation else "$SLURM_JOB_ID",
        before=_before(plan),
        start=quote_argv([*_on_good_nodes(plan), *srun, *start_script(plan, task.script)]),
        stage_in=(quote_argv([*_srun_per_node(plan), *start_script(plan, script)]) for script in task.stages),
        preflight=quote_argv([*srun, *start_script(plan, task.script, PREFLIGHT)]) if plan.checks.preflight else "",
    )
    return Launch(plan, argv, {run_files.JOB_SCRIPT: text, **task.scripts}, task.files)


def _options(plan: LaunchPlan) -> list[str]:
    return [
        *_resources(plan),
        f"--output={plan.run_directory.replace('%', '%%')}/{run_files.JOB_LOG}",  # sbatch expands a lone %
        *([f"--dependency={dependency(plan)}"] if plan.placement.after else []),
        # A second start would mix its records with those of the first, but for one that goes on from there.
        *(["--requeue", "--open-mode=append"] if plan.program.is_requeued else ["--no-requeue"]),
        *(["--no-kill"] if plan.size.spare_nodes else []),  # when a node fails
        *_requested(plan),
    ]


def _resources(plan: LaunchPlan) -> list[str]:
    size, placement = plan.size, plan.placement
    return [
        f"--job-name={plan.run}",
        *([f"--partition={placement.partition}"] if "partition" not in placement.not_requested else []),
        f"--nodes={size.nodes + size.spare_nodes}",
        f"--ntasks={plan.tasks + plan.tasks_per_node * size.spare_nodes}",
        f"--ntasks-per-node={plan.tasks_per_node}",
        f"--cpus-per-task={plan.cpus_per_task}",
        *gres(plan),
        *([f"--mem={size.memory}M"] if size.memory is not None and "mem" not in placement.settings else []),
        f"--time={'UNLIMITED' if size.time_limit is None else time_limit.format_limit(size.time_limit)}",
        f"--chdir={plan.run_directory}",
    ]


def _requested(plan: LaunchPlan) -> list[str]:
    own = constraint(plan)
    given = (f"--{name}={value}" for name, value in plan.placement.settings.items() if name not in own)
    return [*given, *passed_options(plan), *(f"--{name}={value}" for name, value in own.items())]


def _on_good_nodes(plan: LaunchPlan) -> list[str]:
    return ["run_on_good_nodes"] if plan.size.spare_nodes else []


def _srun(plan: LaunchPlan) -> list[str]:
    """The step of all tasks. Ranks take the node's cores in order, which is how GPUs are numbered over sockets."""
    size, placement = plan.size, plan.placement
    return [
        *("srun", f"--job-name={plan.run}", f"--nodes={size.nodes}", f"--ntasks={plan.tasks}"),
        *(f"--ntasks-per-node={plan.tasks_per_node}", f"--cpus-per-task={plan.cpus_per_task}"),
        *([f"--gres=gpu:{size.gpus_per_node}"] if placement.allocation and asks_for_gpus(plan) else []),
        *([f"--mem={size.memory}M"] if placement.allocation and size.memory is not None else []),
        *(["--overlap"] if placement.in_step else []),
        "--distribution=block:block",
        *([f"--cpu-bind={placement.cpu_bind}"] if placement.cpu_bind else []),
        *(f"--mpi={plan.program.mpi or 'none'}", "--kill-on-bad-exit=1", "--quit-on-interrupt"),
    ]


def _srun_terminal(plan: LaunchPlan) -> list[str]:
    """A step of one task on the user's terminal; it shares an allocation with whatever runs there, else it gets one."""
    step = ["--pty", "--mpi=none", *([f"--cpu-bind={plan.placement.cpu_bind}"] if plan.placement.cpu_bind else [])]
    if not plan.placement.allocation:
        return ["srun", *step, *_resources(plan), *_requested(plan)]
    size = ["--overlap", "--nodes=1", "--ntasks=1", f"--cpus-per-task={plan.cpus_per_task}"]
    gpus = [f"--gres=gpu:{plan.size.gpus_per_node}"] if asks_for_gpus(plan) else []
    return ["srun", *step, *size, *gpus]


def _srun_per_node(plan: LaunchPlan) -> list[str]:
    """A step of one small task on each node, which all end in their own time."""
    return [
        *("srun", f"--job-name={plan.run}", f"--nodes={plan.size.nodes}", f"--ntasks={plan.size.nodes}"),
        *("--ntasks-per-node=1", "--cpus-per-task=1", "--distribution=block"),
        *("--overlap", "--mpi=none", "--kill-on-bad-exit=0"),
    ]


def _before(plan: LaunchPlan) -> list[str]:
    """The allocation's shell differs from the ranks; the image is needed for the job's time; and the preflight names
    nodes that never answer."""
    force = f"; force_end {KILL_SECONDS}" if plan.placement.allocation else ""
    list_hosts = f'scontrol show hostnames "$SLURM_JOB_NODELIST" >"$run/{run_files.HOSTS}"'
    return [
        *(["leave_login_node"] if plan.placement.allocation else []),
        *([list_hosts] if plan.checks.preflight else []),
        *renew_lease(plan),
        *(["ct_job_lasts=slurm_job_lasts"] if plan.program.restarts else []),
        *([RETRIES] if plan.program.is_requeued else []),
        *([f"look_for_nodes() {{ look_for_good_nodes {plan.size.nodes}; }}"] if plan.size.spare_nodes else []),
        f"end_tasks() {{ end_slurm_steps {shlex.quote(plan.run)}{force}; }}",
    ]
