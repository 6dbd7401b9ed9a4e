"""Whether a job is that of a run, and which server has it: two clusters may share a home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.pbs import client

TIMEOUT_SECONDS = 10

Attributes = Mapping[str, Any]


class OtherServerError(SchedulerError):
    """The job belongs to a server that does not answer here: nothing is known of it."""

    def __init__(self, server: str) -> None:
        super().__init__(f"its job belongs to PBS server {server}", "Look from a login node of that cluster")


@dataclass(frozen=True)
class JobRecord:
    """A run's job: the id by which this host's commands reach it, and its attributes (None: PBS has forgotten it)."""

    job_id: str
    record: Optional[Attributes]


def look_up(job_id: str, plan: LaunchPlan) -> JobRecord:
    """What PBS has of a run's job. Raises OtherServerError, or CtrainError if PBS does not answer."""
    record, server_here = read_record(job_id)
    if record is not None and is_job_of(record, plan):
        return JobRecord(job_id, record)
    server = plan.placement.cluster or job_id.partition(".")[2]  # an older ctrain did not record it
    if not server or is_same_server(server, server_here or _own_server()):  # an error may lack the name
        return JobRecord(job_id, None)
    remote_id = f"{job_id}@{server}"  # man qstat: an id may name the server to ask
    try:
        record, _ = read_record(remote_id)
    except CtrainError as error:
        raise OtherServerError(server) from error
    return JobRecord(remote_id, record if record is not None and is_job_of(record, plan) else None)


def check_server(plan: LaunchPlan) -> None:
    """Raise OtherServerError if this host's server is not that of the plan; CtrainError if PBS does not answer."""
    if plan.placement.cluster and not is_same_server(plan.placement.cluster, _own_server()):
        raise OtherServerError(plan.placement.cluster)


def _own_server() -> str:
    """The name of the server that this host's commands ask; "" if it tells none. Raises CtrainError if it does not
    answer."""
    result = client.run(["qstat", "-B", "-f", "-F", "json"], timeout=TIMEOUT_SECONDS)
    if result.code != 0:
        raise SchedulerError(client.error_text(result))
    return client.server(result.stdout)


def is_job_of(record: Attributes, plan: LaunchPlan) -> bool:
    """Whether the attributes of a job are those of the plan's: qsub runs in the run directory, where its log goes."""
    variables = record.get("Variable_List")
    workdir = variables.get("PBS_O_WORKDIR") if isinstance(variables, dict) else None
    paths = [str(record.get("Output_Path", "")).partition(":")[2], *([str(workdir)] if workdir else [])]
    run = Path(plan.run_directory).resolve()
    return any(path and (run == Path(path).resolve() or run in Path(path).resolve().parents) for path in paths)


def read_record(job_id: str) -> tuple[Optional[Attributes], str]:
    """The attributes of a job (None: it is unknown), and the name of the server that answered. Raises CtrainError if
    PBS does not answer."""
    result = client.run_with_history("qstat", "-f", "-F", "json", job_id, timeout=TIMEOUT_SECONDS)
    if result.code not in (0, client.UNKNOWN, client.FINISHED):
        raise SchedulerError(client.error_text(result))
    jobs = client.parse(result.stdout, "Jobs") if result.code == 0 else {}
    return next(iter(jobs.values()), None), client.server(result.stdout)


def is_same_server(name: str, here: str) -> bool:
    """Whether two names are of one server, be one without the domain; "" is this host's own."""
    return not here or name == here or name.startswith(f"{here}.") or here.startswith(f"{name}.")
