"""The state of a PBS job and its failed task, in the terms of schedulers/protocol.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Optional

from ctrain_runtime.errors import CtrainError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.pbs import client, ownership
from ctrain_runtime.schedulers.protocol import FailedTask, Outcome, OutOfMemory, Status

WAITING = frozenset("QHWT")
UNREACHED = frozenset({"down", "state-unknown"})  # states of a node (man pbs_node_attributes)
HOSTS_NAMED = 3  # at most
TERMINATED = 91  # a substate: ended on request (job.h, JOB_SUBSTATE_TERMINATED)
SIGTERM = 271  # as an exit status: 256 + 15, also if the script handles the signal
# Exit_status by which PBS itself ended a job (job.h, JOB_EXEC_*). Other negative ones: it could not start it.
OUTCOMES = {
    0: Outcome.COMPLETED,
    SIGTERM: Outcome.CANCELLED,
    -11: Outcome.CANCELLED,  # qdel -W force
    -14: Outcome.NODE_FAILURE,
    -20: Outcome.NODE_FAILURE,
    -24: Outcome.FAILED,  # more CPUs used than requested
    -25: Outcome.FAILED,
    -26: Outcome.OUT_OF_MEMORY,
    -27: Outcome.OUT_OF_MEMORY,
    -28: Outcome.TIMEOUT,
    -29: Outcome.TIMEOUT,
}

_ENDING = re.compile(r".*\) and (.+)$", re.DOTALL)  # Job run at ... on (...) and terminated by kim@login01
# Of PALS's mpiexec, as in github.com/pmodels/mpich/issues/7605: x4213c4s7b0n0...: rank 27421 died from signal 6
_TASK_FAILURE = re.compile(
    r"(?m)^(?P<host>[^\s:]+): rank (?P<task>[0-9]{1,9}) (?P<how>died from signal \d+|exited with code [1-9]\d*)"
)
# Of pbs_mom (resc_used), and of its cgroups hook.
_OUT_OF_MEMORY = re.compile(
    r"(?m)^=>> PBS: job killed: p?v?mem [0-9]+[kmgt]?b? exceeded limit (?P<limit>[0-9]{1,15})(?P<unit>[kmgt]?)b?"
    r"|^.*Cgroup (?:mem|memsw|memory) limit exceeded"
)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def read_status(job_id: str, plan: LaunchPlan) -> Status:
    """The state of a run's job. Never raises: without an answer it counts as running."""
    try:
        record = ownership.look_up(job_id, plan).record
    except ownership.OtherServerError as error:
        return Status("unknown", note=str(error))
    except CtrainError as error:
        return Status("running", note=f"PBS does not answer ({error.message}); retrying")
    if record is None:
        return Status("ended", outcome=Outcome.UNKNOWN)
    status = parse_status(record)
    if record.get("job_state") != "R" or not (down := _down_hosts(record)):
        return status
    hosts = f"{', '.join(down[:HOSTS_NAMED])}{', ...' if len(down) > HOSTS_NAMED else ''}"
    note = f"{hosts} down, and PBS may keep the job all the same. To end it: ctrain cancel {plan.run}"
    return replace(status, note=note)


def _down_hosts(record: Mapping[str, Any]) -> list[str]:
    """Those of a running job's hosts that PBS cannot reach; none if it does not answer: the next look asks again.

    It leaves the job of a crashed host in state R (seen with OpenPBS 23.06: "not killing job yet").
    """
    try:
        listed = client.run(["pbsnodes", "-l"], timeout=ownership.TIMEOUT_SECONDS).stdout
    except CtrainError:
        return []
    lines = [line.split(None, 2) for line in listed.splitlines()]  # NAME STATE[,STATE]... COMMENT
    down = {line[0] for line in lines if len(line) > 1 and UNREACHED & set(line[1].split(","))}
    vnodes = re.findall(r"\(([^:()]+):", str(record.get("exec_vnode", "")))
    return list(dict.fromkeys(host for host, vnode in zip(client.host_names(record), vnodes) if {host, vnode} & down))


def parse_status(record: Mapping[str, Any]) -> Status:
    """The status in the attributes of a job. A state unknown here counts as running."""
    state, comment = str(record.get("job_state", "")), str(record.get("comment", ""))
    if state in WAITING:
        never = comment.startswith("Can Never Run") or {"u", "o"} & set(str(record.get("Hold_Types", "")))
        note = "the job does not start until it is changed or released" if never else ""
        word = comment.removeprefix("Not Running: ") or f"state {state}"
        return Status("waiting", word, None, note, _estimated_start(record))
    if state == "F":
        return _ended(record, comment)
    if state == "E" and "Exit_status" in record:  # only its output is still being delivered
        ended = _ended(record, comment)
        word = _word_of_its_own(record["Exit_status"])
        return replace(ended, word=word) if word else replace(ended, provisional=True)
    return Status("running", "" if state in "RE" else f"state {state}")


def _word_of_its_own(code: object) -> str:
    """How PBS will describe, in state F, a job that ended by itself; "" for another: only that comment says why."""
    own = isinstance(code, int) and code >= 0 and code != SIGTERM
    return ("failed" if code else "finished") if own else ""


def _estimated_start(record: Mapping[str, Any]) -> str:
    """When PBS expects to start a job, in ISO 8601; "" if it does not say (man pbs_job_attributes, estimated; qstat
    prints it as ctime does, or as UNKNOWN)."""
    estimated = record.get("estimated")
    try:
        return datetime.strptime(str((estimated or {})["start_time"]), "%a %b %d %H:%M:%S %Y").isoformat()
    except (KeyError, TypeError, ValueError):
        return ""


def _ended(record: Mapping[str, Any], comment: str) -> Status:
    code = record.get("Exit_status")
    ending = _ENDING.match(comment)
    word = ending[1] if ending else "deleted" if code is None else f"exit status {code}"
    by = re.match(r"terminated by ([^@]+)@", word)
    if by:
        own = by[1] == str(record.get("Job_Owner", "")).partition("@")[0]
        return Status("ended", word, Outcome.CANCELLED_BY_USER if own else Outcome.CANCELLED_BY_ADMIN)
    if record.get("substate") == TERMINATED:  # also by qdel -W force: its exit status is 265, as of a killed script
        return Status("ended", word, Outcome.CANCELLED)
    if isinstance(code, int):
        outcome = OUTCOMES.get(code, Outcome.NEVER_STARTED if code < 0 else Outcome.FAILED)
        return Status("ended", word, outcome, comment if outcome is Outcome.NEVER_STARTED else "")
    return Status("ended", word, Outcome.NEVER_STARTED, "PBS deleted it; a job that it depends on may have failed")


def first_failed_task(job_log: str) -> Optional[FailedTask]:
    """The first task that PALS's mpiexec reports in job.log as failed or killed; None without one.

    From the first one on it ends the others.
    """
    failure = _TASK_FAILURE.search(job_log)
    return FailedTask(int(failure["task"]), failure["host"], failure["how"]) if failure else None


def out_of_memory(log: str) -> Optional[OutOfMemory]:
    """The first want of memory that PBS reports in a job's logs; None without one."""
    report = _OUT_OF_MEMORY.search(log)
    if not report:
        return None
    return OutOfMemory(limit=int(report["limit"]) * _UNITS[report["unit"]] if report["limit"] else 0)
