"""Whether a job with the number of a run's job is that job: clusters that share a home count on their own, and counts
begin anew. A run's job is known by its directory; its plan has the name of its cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.slurm import client

TIMEOUT_SECONDS = 10

_CLUSTER = re.compile(r"(?m)^ClusterName\s*=\s*(\S+)")
_DIRECTORY = re.compile(r"\sWorkDir=(.*?)(?=\s+[A-Z]\w+=|\s*$)", re.DOTALL)
_NAME = re.compile(r"(?:^|\s)JobName=(\S*)")


class OtherClusterError(SchedulerError):
    """The job belongs to a cluster that this host does not reach: nothing is known of it here."""

    def __init__(self, cluster: str) -> None:
        super().__init__(f"its job belongs to cluster {cluster}", "Look from a login node of that cluster")


@dataclass(frozen=True)
class JobRecord:
    """What Slurm has of a run's job: `options` reach its cluster, `text` is the record of `scontrol show job` ("":
    forgotten)."""

    options: tuple[str, ...]
    text: str


def look_up(job_id: str, plan: LaunchPlan) -> JobRecord:
    """The record of a run's job. Raises OtherClusterError, or SchedulerError if Slurm does not answer."""
    text = _show((), job_id)
    if text and is_job_of(text, plan):
        return JobRecord((), text)
    options = reach(plan.placement.cluster)
    if options:
        try:
            text = _show(options, job_id)
        except SchedulerError as error:
            raise OtherClusterError(plan.placement.cluster) from error
    return JobRecord(options, text if is_job_of(text, plan) else "")


def reach(cluster: str) -> tuple[str, ...]:
    """The options by which Slurm's commands ask `cluster`: none for the one that they ask anyway; an unknown one ("")
    is taken for that. Raises SchedulerError if Slurm does not answer."""
    if not cluster:
        return ()
    config = _ask(("scontrol", "show", "config"))
    here = _CLUSTER.search(config)
    return () if here and here[1] == cluster else ("-M", cluster)


def is_job_of(text: str, plan: LaunchPlan) -> bool:
    """Whether a record of `scontrol show job` is that of the plan's job."""
    if f" WorkDir={plan.run_directory} " in text:  # whatever characters it has
        return True
    directory, name = _DIRECTORY.search(text), _NAME.search(text)
    if directory:
        return is_same(directory[1], plan.run_directory)
    return name is not None and name[1] == plan.run


def is_same(directory: str, other: str) -> bool:
    """Whether two paths are those of one directory, after resolving links."""
    return directory == other or Path(directory).resolve() == Path(other).resolve()


def _show(options: tuple[str, ...], job_id: str) -> str:
    """The record of a job; "" if there is none."""
    return _ask(("scontrol", *options, "--oneliner", "show", "job", job_id), missing="Invalid job id")


def _ask(argv: tuple[str, ...], missing: str = "") -> str:
    try:
        result = client.run(argv, timeout=TIMEOUT_SECONDS)
    except CtrainError as error:
        raise SchedulerError(f"Slurm does not answer ({error.message})") from error
    if result.code == 0:
        return result.stdout
    if missing and missing in result.stderr:
        return ""
    raise SchedulerError(f"Slurm does not answer ({client.error_text(result)})")
