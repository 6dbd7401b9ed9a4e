"""Queues a job by a scheduler's command that prints the job's id: sbatch, qsub."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Callable, Optional

from ctrain_runtime.base.command import CommandResult
from ctrain_runtime.errors import CtrainError, SchedulerError, UnansweredSubmission
from ctrain_runtime.plan.model import Launch, LaunchPlan

TIMEOUT_SECONDS = 120
# Why options that users pass on to the command are refused, and what to do.
PLANNED = "it contradicts the plan"
NEEDS_LOG = ("ctrain reads the job's output in the run directory", "Remove it")
STARTS_AGAIN = (
    "a second start would mix its records with those of the first",
    "Remove it; --retries N queues a job again",
)


def submit(
    launch: Launch,
    pass_fds: tuple[int, ...],
    job_id: re.Pattern[str],
    *,
    run: Callable[..., CommandResult],
    error_text: Callable[[CommandResult], str],
    find: Callable[[LaunchPlan], Optional[str]],
    lookup: str,
    lost: re.Pattern[str],
) -> str:
    """Queue the job; its id. The command inherits `pass_fds`. Raises SchedulerError with the scheduler's explanation,
    UnansweredSubmission if the job may have been queued: also if the error matches `lost`.

    `run` and `error_text` are those of the scheduler's client; `find` looks a job up whose submission was cut off, as a
    user does by `lookup`. The command has a session of its own: if Ctrl-C killed it, it might leave a job whose id is
    lost.
    """
    plan, program = launch.plan, launch.argv[0]
    directory = Path(plan.run_directory)
    try:
        result = run(launch.argv, cwd=directory, timeout=TIMEOUT_SECONDS, new_session=True, pass_fds=pass_fds)
        if result.code == 0:
            return parse_job_id(result.stdout, job_id, program)
        if result.code < 0 or lost.search(result.stderr):
            raise SchedulerError(error_text(result) if result.code > 0 else f"{program} was killed")
    except CtrainError as error:
        with contextlib.suppress(SchedulerError):  # the first problem is the one to report
            queued = find(plan)
            if queued:
                return queued
        problem = f"no answer to the submission: {error.message}; the job may have been queued"
        check = f"Check with: {lookup}{plan.run}; if it was, watch it with: ctrain attach {plan.run_directory}"
        raise UnansweredSubmission(problem, check) from error
    raise SchedulerError(f"{program} rejected the job: {error_text(result)}", f"Script: {launch.argv[-1]}")


def parse_job_id(text: str, job_id: re.Pattern[str], program: str) -> str:
    """The last id in the output of `program`, to which sites may add banners. Raises SchedulerError."""
    ids = job_id.findall(text)
    if not ids:
        last_line = (text.strip().splitlines() or ["nothing"])[-1]
        raise SchedulerError(f"{program} printed no job id, but {last_line!r}")
    return str(ids[-1])
