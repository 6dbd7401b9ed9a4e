"""Submits jobs to Slurm, looks them up and cancels them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.schedulers import submission
from ctrain_runtime.schedulers.slurm import client, facts, ownership

CHECK_TIMEOUT_SECONDS = 30
FIND_TIMEOUT_SECONDS = 30
CANCEL_TIMEOUT_SECONDS = 10
ACCOUNTED = "--starttime=now-30days"  # by default sacct begins with today

JOB_ID = re.compile(r"(?m)^([0-9]{1,18})(?:;\S+)?[ \t\r]*$")  # man sbatch, --parsable: JOBID or JOBID;CLUSTER

# Errors of sbatch after the request was sent (slurm_errno.c); a failure to connect is none of them.
LOST = re.compile(r"(?i)timed out on send/recv|zero bytes were|(?:send|receive|shutdown) failure")

# Errors for lack of nodes, which those that are down may have (slurm_errno.c).
NO_NODES = re.compile(r"(?i)requested node configuration is not available|required nodes? not available")


def submit(launch: Launch, pass_fds: tuple[int, ...] = ()) -> str:
    """Queue the job; its id. sbatch inherits `pass_fds`. Raises SchedulerError with Slurm's explanation."""
    return submission.submit(
        launch,
        pass_fds,
        JOB_ID,
        run=client.run,
        error_text=client.error_text,
        find=find,
        lookup="squeue --me --name=",
        lost=LOST,
    )


def check(launch: Launch) -> None:
    """Raise SchedulerError if Slurm would reject the job; nothing is queued (man sbatch, --test-only).

    That test calls a job impossible for which nodes are down; sbatch queues it (seen with 24.11 and 26.05).
    """
    *argv, script = launch.argv
    try:
        result = client.run(
            [*argv, "--test-only"], stdin=launch.scripts[Path(script).name], timeout=CHECK_TIMEOUT_SECONDS
        )
    except CtrainError:
        return  # a controller that does not answer has not refused the job
    error = client.error_text(result)
    if result.code != 0 and not (
        NO_NODES.search(error) and facts.has_unavailable_nodes(launch.plan.placement.partition)
    ):
        raise SchedulerError(f"sbatch rejected the job: {error}", "Change the request, or check with: sinfo")


def find(plan: LaunchPlan) -> Optional[str]:
    """The id of the newest job of a run: in the queue, or ended. Raises SchedulerError if Slurm does not answer."""
    options = ownership.reach(plan.placement.cluster)
    output = client.query(
        ["squeue", *options, "--me", "--noheader", "--states=all", f"--name={plan.run}", "--format=%A|%Z"],
        timeout=FIND_TIMEOUT_SECONDS,
        problem=f"cannot look up the job of run {plan.run}",
        hint=f"Check with: squeue --me --name={plan.run}",
    )
    return parse_queue(output, plan.run_directory) or parse_queue(_accounting(plan, options), plan.run_directory)


def _accounting(plan: LaunchPlan, options: tuple[str, ...]) -> str:
    """What the accounting has of jobs with the run's name; "" without accounting."""
    argv = ["sacct", *options, "--allocations", "--noheader", "--parsable2", f"--name={plan.run}"]
    try:
        result = client.run([*argv, ACCOUNTED, "--format=JobID,WorkDir"], timeout=FIND_TIMEOUT_SECONDS)
    except CtrainError:
        return ""
    return result.stdout if result.code == 0 else ""


def parse_queue(text: str, directory: str) -> Optional[str]:
    """The highest id in lines of JOBID|DIRECTORY whose directory is `directory`, after resolving links."""
    ids = []
    for job_id, workdir in re.findall(r"(?m)^\s*([0-9]{1,18})\|([^\0\n]+?)\s*$", text):
        if ownership.is_same(workdir, directory):
            ids.append(int(job_id))
    return str(max(ids)) if ids else None


def cancel(job_id: str, plan: LaunchPlan) -> None:
    """Cancel a run's job; one that has ended is no error. Raises SchedulerError if the job may still be running.

    A number alone is not enough: on another cluster, or after numbers began anew, it is that of another job.
    """
    problem, hint = f"cannot cancel job {job_id}; it may still be running", f"Run: scancel {job_id}"
    try:
        known = ownership.look_up(job_id, plan)
    except SchedulerError as error:
        raise SchedulerError(f"{problem}: {error.message}", error.hint or hint) from error
    if known.text:
        argv = ["scancel", *known.options, job_id]
        client.query(argv, timeout=CANCEL_TIMEOUT_SECONDS, problem=problem, hint=hint, new_session=True)
    elif not plan.placement.cluster:
        reason = "Slurm has no job of this run with that number here, and the record names no cluster"
        raise SchedulerError(f"{problem}: {reason}", "Cancel it on the cluster where it was submitted")
