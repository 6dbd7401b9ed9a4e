"""What srun writes into a job's log about its tasks."""

from __future__ import annotations

import re
from typing import Optional

from ctrain_runtime.schedulers.protocol import FailedTask

# With srun --label, a line begins with the number of the task.
_FAILURE = re.compile(
    r"^(?:[0-9]+: )?srun: error: (?P<host>[^\s:]+): tasks? \[?(?P<task>[0-9]{1,9})[-,0-9]*\]?: (?P<how>\S.*)$"
)
# From the first of these lines on, tasks end because the step is being ended: 22.05 writes "launch/slurm: _step_signal:
# Terminating", 26.05 leaves out "slurmstepd".
_STEP_ENDS = re.compile(
    r"^(?:[0-9]+: )?(?:srun: (?:\S+ _step_signal: )?Terminating StepId=|srun: Job step aborted|srun: forcing job term"
    r"|.*\berror: \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED)"
)


def first_failed_task(job_log: str) -> Optional[FailedTask]:
    """The first task that srun reports as failed or killed before the step was ended; None if there is none.

    Of tasks that failed together ("tasks 0-1: ...") it is the one with the lowest number.
    """
    for line in job_log.splitlines():
        failure = _FAILURE.match(line)
        if failure:
            return FailedTask(int(failure["task"]), failure["host"], failure["how"].strip())
        if _STEP_ENDS.match(line):
            return None
    return None
