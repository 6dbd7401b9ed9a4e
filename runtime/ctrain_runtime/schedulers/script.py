"""job.sh, which every scheduler runs on one host: its stages, its events, and how it outlives signals."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.engines import apptainer
from ctrain_runtime.errors import DataError, PreflightError
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.plan.task import Task
from ctrain_runtime.store.lease import MAX_LEASE_SECONDS

PREFLIGHT = "preflight"  # the argument by which a task proves its world instead of running the program


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


def rendezvous(plan: LaunchPlan, address: str) -> str:
    """The line that exports the rendezvous of a run whose first task is on this machine; `address` is bash."""
    return f"set_rendezvous {address} {int(plan.run_key, 16) % 4536}"


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
        *([f"ct_lease={shlex.quote(plan.image.lease)}"] if plan.image.lease else []),
        *([f"ct_notify=({quote_argv(plan.notify)})"] if plan.notify else []),
        f'begin_job "{job_id}"{_earlier_process(plan)}',
        *apptainer.load_modules(plan.image.engine, plan.environment.modules),
        *before,
        "pass_signals_to_tasks",
        *([_retries(plan)] if plan.program.is_requeued else []),
        *(f"copy_to_nodes {command}" for command in stage_in),
        *([_preflight(plan, preflight)] if preflight else []),
        *_judge(plan),
        f"run_job_with_restarts {plan.program.restarts} {start}" if plan.program.has_attempts else f"run_job {start}",
    ]
    return f"""\
#!/bin/bash -p
{header}# Run {plan.run}: prepares, starts the tasks, and writes how it ended, whoever watches.
{library(plan)}
{chr(10).join(lines)}
"""


def on_terminal(plan: LaunchPlan, task: Task, before: str) -> Launch:
    """One task as a process of this machine, with its terminal."""
    start = quote_argv(["exec", *start_script(plan, task.script)])
    text = f"#!/bin/bash -p\n{library(plan)}\n{before}\nexport CTRAIN_TASK=0\n{start}\n"
    return Launch(plan, job_argv(plan), {run_files.JOB_SCRIPT: text, **task.scripts}, task.files)


def job_argv(plan: LaunchPlan) -> tuple[str, ...]:
    """The argv that runs job.sh on this machine."""
    return "/bin/bash", "-p", f"{plan.run_directory}/{run_files.JOB_SCRIPT}"


def dependency(plan: LaunchPlan) -> str:
    """The condition under which a job may start, as Slurm and PBS write it."""
    return f"{'afterany' if plan.placement.after_any else 'afterok'}:{plan.placement.after}"


def renew_lease(plan: LaunchPlan) -> list[str]:
    """The line by which a job, once it runs, limits the lease on its image to its own time."""
    limit = None if plan.program.is_requeued else plan.size.time_limit  # it waits again meanwhile
    return [f"renew_lease {limit or MAX_LEASE_SECONDS // 60}"] if plan.image.lease else []


def _retries(plan: LaunchPlan) -> str:
    allowed = "done" if plan.program.until_done else plan.program.retries
    return f"retry_job {allowed} {(plan.size.time_limit or 0) * 60}"


def _earlier_process(plan: LaunchPlan) -> str:
    """The argument that names the process of this machine which has to end before; "" where a queue sees to that."""
    placement = plan.placement
    return f" {shlex.quote(placement.after)}" if placement.after and not placement.is_queued else ""


def _preflight(plan: LaunchPlan, command: str) -> str:
    check = plan.checks.preflight
    code = str(PreflightError.exit_code) if not check or check.strict else ""
    advice = ""
    if plan.program.launcher == "mpi":  # MPI ends ranks that cannot start before they report anything
        advice = (
            ". If the image's MPI does not form one world here, pass --launcher gloo for Horovod, or env for programs"
            " without MPI"
        )
    return f"preflight {quote_argv([code, advice])} {command}"


def _judge(plan: LaunchPlan) -> list[str]:
    """The line by which the step of all tasks has a judge of hangs."""
    if not plan.is_watched:
        return []
    words = (plan.size.nodes, plan.recorded_ranks, plan.unit, plan.program.hang_after, plan.program.on_hang)
    return [f"ct_judge=({quote_argv(map(str, words))})"]


def directives(prefix: str, options: list[str]) -> str:
    """Comment lines by which a scheduler reads its options, one per line, quoted."""
    return "".join(f"{prefix} {quote_argv([option])}\n" for option in options)
