"""The state of a Slurm job and its failed task, in the terms of schedulers/protocol.py."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from typing import Optional

from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.protocol import FailedTask, Outcome, OutOfMemory, Status
from ctrain_runtime.schedulers.slurm import client, ownership

TIMEOUT_SECONDS = 10

# man squeue, JOB STATE CODES. All other states (COMPLETING, STAGE_OUT, SUSPENDED ...) count as running.
WAITING = frozenset(
    {
        *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
        "POWER_UP_NODE",
    }
)
OUTCOMES = {
    "COMPLETED": Outcome.COMPLETED,
    "FAILED": Outcome.FAILED,
    "CANCELLED": Outcome.CANCELLED,
    "REVOKED": Outcome.CANCELLED,  # another cluster of the federation started the job
    "TIMEOUT": Outcome.TIMEOUT,
    "DEADLINE": Outcome.TIMEOUT,
    "PREEMPTED": Outcome.PREEMPTED,
    "NODE_FAIL": Outcome.NODE_FAILURE,
    "OUT_OF_MEMORY": Outcome.OUT_OF_MEMORY,
    "BOOT_FAIL": Outcome.NEVER_STARTED,
    "LAUNCH_FAILED": Outcome.NEVER_STARTED,
    "RECONFIG_FAIL": Outcome.NEVER_STARTED,
    "EXPIRED": Outcome.NEVER_STARTED,
}
# Reasons for which a job waits until it is changed, released or cancelled.
STUCK = frozenset(
    {
        *("BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS", "JobHeldAdmin", "JobHeldUser"),
        *("PartitionNodeLimit", "PartitionTimeLimit", "job_requeued_in_held_state", "launch_failed_requeued_held"),
    }
)
_LIMIT = re.compile(r"(?:QOS|Assoc)(?:Max\w+PerJob\w*|Min\w+)")  # reasons: limits of each job, which do not change
NO_TIME = frozenset({"", "Unknown", "N/A", "None", "(null)"})

# The output of scontrol between the job's name and its dependencies. Users choose only the name, which comes first: it
# would have to contain all this to mislead the pattern.
_HEAD = re.compile(
    r"\sUserId=\S*\((?P<uid>[0-9]{1,10})\)\s+GroupId=\S*\s+MCS_label=\S*"
    r"\s+Priority=\S*\s+Nice=\S*\s+Account=\S*\s+QOS=\S*(?:\s+WCKey=\S*)?"
    r"\s+JobState=(?P<state>\w+)\s+Reason=(?P<reason>.*?)\s+Dependency=",
    re.DOTALL,
)

_START_TIME = re.compile(r"\sStartTime=(\S*)")
_CANNOT_OPEN_LOG = re.compile(r"\sExitCode=0:53\s")  # the same in 22.05, 24.11 and 26.05
# Of srun in job.log. With --label, a line begins with the number of the task.
_TASK_FAILURE = re.compile(
    r"^(?:[0-9]+: )?srun: error: (?P<host>[^\s:]+): tasks? \[?(?P<task>[0-9]{1,9})[-,0-9]*\]?: (?P<how>\S.*)$"
)
# From the first of these lines on, tasks end because the step is being ended: 22.05 writes "launch/slurm: _step_signal:
# Terminating", 26.05 leaves out "slurmstepd".
_STEP_ENDS = re.compile(
    r"^(?:[0-9]+: )?(?:srun: (?:\S+ _step_signal: )?Terminating StepId=|srun: Job step aborted|srun: forcing job term"
    r"|.*\berror: \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED)"
)
# Of slurmstepd's PMIx plugin (_errhandler): it has lost a task that has ended, status -61 or another
_PMIX_LOST = re.compile(r"^(?:[0-9]+: )?.*\berror: +mpi/pmix\w*: _errhandler: .*Error handler invoked")
# Of slurmstepd with cgroups (22.05: "Detected 1 oom_kill event in StepId=", before: "oom-kill event(s)"), of srun, and
# of slurmstepd where it samples memory itself (JobAcctGatherParams=OverMemoryKill).
_OUT_OF_MEMORY = re.compile(
    r"(?m)^(?:.*slurmstepd-(?P<node>[^\s:]+): )?.*(?:Detected [0-9]+ oom[_-]kill event"
    r"|StepId=\S+ exceeded memory limit \([0-9]+ > (?P<limit>[0-9]{1,18})\))"
)
_TASK_OUT_OF_MEMORY = re.compile(r"Out Of Memory$")


@dataclass(frozen=True)
class Head:
    """The owner and the state of a job; `uid` is None if the record is not as expected."""

    uid: Optional[int]
    state: str
    reason: str


def read_status(job_id: str, plan: LaunchPlan) -> Status:
    """The state of a run's job. Never raises: without an answer it counts as running."""
    try:
        known = ownership.look_up(job_id, plan)
    except ownership.OtherClusterError as error:
        return Status("unknown", note=str(error))
    except SchedulerError as error:
        return Status("running", note=f"{error.message}; retrying")
    if known.text:
        status = parse_status(known.text)
        return _name_canceller(job_id, plan, known, status) if status.outcome is Outcome.CANCELLED else status
    # Slurm forgets jobs MinJobAge after their end.
    lines = _read_accounting(job_id, plan, known.options)
    return parse_accounting(lines or "", os.getuid()) or _forgotten(job_id, plan)


def _forgotten(job_id: str, plan: LaunchPlan) -> Status:
    """Of a job that its cluster no longer knows. An older ctrain did not record the cluster: then it may be another."""
    if plan.placement.cluster:
        return Status("ended", outcome=Outcome.UNKNOWN)
    note = f"Slurm has no job {job_id} of this run here, and its record names no cluster"
    return Status("unknown", note=f"{note}. Look from the cluster where it was submitted")


def parse_status(text: str) -> Status:
    """The status in a record of `scontrol show job`. A state unknown here counts as running."""
    head = parse_head(text)
    rest = strip_free_text(text)
    if head.state in WAITING:
        times = _START_TIME.search(rest)
        note = (
            "the job does not start until it is changed or released"
            if head.reason in STUCK or _LIMIT.fullmatch(head.reason)
            else ""
        )
        return Status("waiting", head.reason, None, note, times[1] if times and times[1] not in NO_TIME else "")
    if head.state == "FAILED" and _CANNOT_OPEN_LOG.search(rest):
        note = "its first node cannot open the job's log. Choose a directory that all nodes share: --runs DIR"
        return Status("ended", head.state, Outcome.NEVER_STARTED, note)
    if head.state in OUTCOMES:
        return Status("ended", head.state, OUTCOMES[head.state])
    return Status("running", "" if head.state in ("RUNNING", "COMPLETING") else head.state)


def parse_head(text: str) -> Head:
    """The owner, state and reason in a record of `scontrol show job`."""
    head = _HEAD.search(text)
    if head:
        return Head(int(head["uid"]), head["state"], head["reason"])
    state = re.search(r"(?:^|\s)JobState=(\S*)", text)
    reason = re.search(r"(?:^|\s)Reason=(\S*)", text)
    return Head(None, state[1] if state else "", reason[1] if reason else "")


def strip_free_text(text: str) -> str:
    """A record of `scontrol show job` without fields that users choose: name, command, directory, comment."""
    head, tail = _HEAD.search(text), text.rfind(" StdOut=")
    middle = text[head.end() if head else 0 :]
    end = re.search(r"\sCommand=", middle)
    return middle[: end.start()] + text[tail:] if end and tail >= 0 else middle


def _name_canceller(job_id: str, plan: LaunchPlan, known: ownership.JobRecord, status: Status) -> Status:
    """`status` with the user who cancelled the job, which only the accounting has; it may record the end later."""
    lines = _read_accounting(job_id, plan, known.options)
    if lines is None:
        return status
    recorded = parse_accounting(lines, os.getuid())
    return recorded if recorded and recorded.word == status.word else dataclasses.replace(status, provisional=True)


def _read_accounting(job_id: str, plan: LaunchPlan, options: tuple[str, ...]) -> Optional[str]:
    """The lines of a run's job in the accounting, as JOBID|STATE|EXITCODE; None without accounting."""
    fields = "--format=JobID,State,ExitCode,WorkDir"
    argv = ["sacct", *options, "--jobs", job_id, "--allocations", "--noheader", "--parsable2", fields]
    try:
        result = client.run(argv, timeout=TIMEOUT_SECONDS)
    except CtrainError:
        return None
    if result.code != 0:
        return None
    lines = [line.split("|", 3) for line in result.stdout.splitlines()]
    own = [line[:3] for line in lines if len(line) == 4 and ownership.is_same(line[3], plan.run_directory)]
    return "\n".join(map("|".join, own))


def parse_accounting(text: str, uid: int) -> Optional[Status]:
    """The end of a job in lines of sacct, JOBID|STATE|EXITCODE; the last line counts. `uid` is the user's own.

    States are as in FAILED or CANCELLED by 1001. None for a job that is unknown or has not ended.
    """
    states = re.findall(r"(?m)^[^|\n]*\|([A-Z_]+)(?: by ([0-9]{1,10}))?\|", text)
    if not states or states[-1][0] not in OUTCOMES:
        return None
    state, canceller = states[-1]
    outcome = OUTCOMES[state]
    if state == "CANCELLED" and canceller:
        outcome = Outcome.CANCELLED_BY_USER if int(canceller) == uid else Outcome.CANCELLED_BY_ADMIN
    return Status("ended", state, outcome)


def first_failed_task(job_log: str) -> Optional[FailedTask]:
    """The first task that srun reports in job.log as failed or killed before the step was ended; None without one.

    Of tasks that failed together ("tasks 0-1: ...") it is the one with the lowest number.
    """
    for line in job_log.splitlines():
        failure = _TASK_FAILURE.match(line)
        if failure:
            return FailedTask(int(failure["task"]), failure["host"], failure["how"].strip())
        if _STEP_ENDS.match(line):
            return None
    return None


def is_aftermath(line: str) -> bool:
    """Whether a line of job.log only tells that tasks have ended, or are being ended."""
    return any(pattern.match(line) for pattern in (_TASK_FAILURE, _STEP_ENDS, _PMIX_LOST))


def out_of_memory(log: str) -> Optional[OutOfMemory]:
    """The first want of memory in a job's log, with the task if srun names it first; None without one."""
    task = first_failed_task(log)
    named = task if task and _TASK_OUT_OF_MEMORY.search(task.how) else None
    report = _OUT_OF_MEMORY.search(log)
    if not named and not report:
        return None
    host = named.host if named else (report["node"] or "" if report else "")
    return OutOfMemory(named.task if named else None, host, int(report["limit"] or 0) if report else 0)
