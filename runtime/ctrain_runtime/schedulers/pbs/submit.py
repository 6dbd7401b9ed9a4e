"""Submits jobs to PBS, looks them up and cancels them."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import exports
from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.schedulers import submission
from ctrain_runtime.schedulers.pbs import client, ownership

CANCEL_TIMEOUT_SECONDS = 10

# Errors of qsub after the request was sent (pbs_error.h, dis.h): the connection ended before the answer came.
LOST = re.compile(r"(?i)end of file|premature end of message|protocol error|communication failure|timed? ?out")
JOB_ID = re.compile(r"(?m)^([0-9]{1,18}\.\S+)[ \t\r]*$")


def write_environment(plan: LaunchPlan) -> None:
    """Write what passes from the caller's environment to a file for the job, which removes it. Raises SchedulerError.

    Tasks get the environment of their node, not that of qsub; and the server shows everybody the values of qsub -v.
    """
    if not plan.environment.passed:
        return
    values = {name: os.environ[name] for name in plan.environment.passed if name in os.environ}
    path = Path(plan.run_directory, run_files.ENVIRONMENT)
    try:
        path.touch(mode=0o600)
        path.write_bytes(os.fsencode(exports(values)))
    except OSError as error:
        raise SchedulerError(f"cannot write {path}: {error.strerror}") from error


def remove_environment(plan: LaunchPlan) -> None:
    """Remove that file of a job that did not start, or was killed."""
    with contextlib.suppress(OSError):
        Path(plan.run_directory, run_files.ENVIRONMENT).unlink(missing_ok=True)


def submit(launch: Launch, pass_fds: tuple[int, ...] = ()) -> str:
    """Queue the job; its id. qsub inherits `pass_fds`. Raises SchedulerError with PBS's explanation."""
    return submission.submit(
        launch,
        pass_fds,
        JOB_ID,
        run=client.run,
        error_text=client.error_text,
        find=find,
        lookup="qselect -N ",
        lost=LOST,
    )


def find(plan: LaunchPlan) -> Optional[str]:
    """The id of the newest job of a run. Raises SchedulerError if PBS does not answer.

    Runs in other directories may have the same name.
    """
    try:
        if plan.placement.cluster:
            ownership.check_server(plan)
        result = client.run_with_history("qselect", "-N", plan.run)
        if result.code != 0:
            raise SchedulerError(client.error_text(result))
        for job_id in sorted(result.stdout.split(), key=_number, reverse=True):
            if ownership.look_up(job_id, plan).record is not None:
                return job_id
    except CtrainError as error:
        problem = f"cannot look up the job of run {plan.run}: {error.message}"
        raise SchedulerError(problem, f"Check with: qselect -N {plan.run}") from error
    return None


def _number(job_id: str) -> int:
    return client.read_count(job_id.partition(".")[0])


def cancel(job_id: str, plan: LaunchPlan) -> None:
    """Cancel a run's job; one that has ended is no error. Raises SchedulerError if the job may still be running."""
    problem, hint = f"cannot cancel job {job_id}; it may still be running", f"Run: qdel {job_id}"
    try:
        known = ownership.look_up(job_id, plan)
        if known.record is None:
            return
        result = client.run(["qdel", known.job_id], timeout=CANCEL_TIMEOUT_SECONDS, new_session=True)
    except CtrainError as error:
        raise SchedulerError(f"{problem}: {error.message}", error.hint or hint) from error
    if result.code not in (0, client.FINISHED, client.UNKNOWN):
        raise SchedulerError(f"{problem}: {client.error_text(result)}", hint)
