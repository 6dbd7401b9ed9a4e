"""Submits jobs to Slurm, looks them up and cancels them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.schedulers import submission
from ctrain_runtime.schedulers.slurm import client

CHECK_TIMEOUT_SECONDS = 30
FIND_TIMEOUT_SECONDS = 30
CANCEL_TIMEOUT_SECONDS = 10

JOB_ID = re.compile(r"(?m)^([0-9]{1,18})(?:;\S+)?[ \t\r]*$")  # man sbatch, --parsable: JOBID or JOBID;CLUSTER


def submit(launch: Launch, pass_fds: tuple[int, ...] = ()) -> str:
    """Queue the job; its id. sbatch inherits `pass_fds`. Raises SchedulerError with Slurm's explanation."""
    return submission.submit(
        launch, pass_fds, JOB_ID, run=client.run, error_text=client.error_text, find=find, lookup="squeue --me --name="
    )


def check(launch: Launch) -> None:
    """Raise SchedulerError if Slurm would reject the job; nothing is queued (man sbatch, --test-only)."""
    *argv, script = launch.argv
    try:
        result = client.run(
            [*argv, "--test-only"], stdin=launch.scripts[Path(script).name], timeout=CHECK_TIMEOUT_SECONDS
        )
    except CtrainError:
        return  # a controller that does not answer has not refused the job
    if result.code != 0:
        raise SchedulerError(
            f"sbatch rejected the job: {client.error_text(result)}", "Change the request, or check with: sinfo"
        )


def find(plan: LaunchPlan) -> Optional[str]:
    """The id of the newest job of a run. Raises SchedulerError if Slurm does not answer."""
    output = client.query(
        ["squeue", "--me", "--noheader", "--states=all", f"--name={plan.run}", "--format=%A|%Z"],
        timeout=FIND_TIMEOUT_SECONDS,
        problem=f"cannot look up the job of run {plan.run}",
        hint=f"Check with: squeue --me --name={plan.run}",
    )
    return parse_queue(output, plan.run_directory)


def parse_queue(text: str, directory: str) -> Optional[str]:
    """The highest id in lines of JOBID|DIRECTORY whose directory is `directory`, after resolving links."""
    wanted = Path(directory).resolve()
    ids = []
    for job_id, workdir in re.findall(r"(?m)^\s*([0-9]{1,18})\|([^\0\n]+?)\s*$", text):
        if workdir == directory or Path(workdir).resolve() == wanted:
            ids.append(int(job_id))
    return str(max(ids)) if ids else None


def cancel(job_id: str) -> None:
    """Cancel a job; one that has ended is no error. Raises SchedulerError if the job may still be running."""
    client.query(
        ["scancel", job_id],
        timeout=CANCEL_TIMEOUT_SECONDS,
        problem=f"cannot cancel job {job_id}; it may still be running",
        hint=f"Run: scancel {job_id}",
        new_session=True,
    )
