"""The allocation around ctrain: salloc, or a batch job that calls ctrain."""

from __future__ import annotations

import os
import re
from typing import Optional

from ctrain_runtime.base import time_limit
from ctrain_runtime.cluster.model import Allocation
from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.schedulers.slurm import client, job
from ctrain_runtime.schedulers.slurm.client import parse_gres, parse_tres

TIMEOUT_SECONDS = 30
FIRST_SPECIAL_STEP = 0xFFFFFFF0  # the steps batch, extern and interactive have ids above; 26.05 prints them as -5 ...

_FIELDS = client.fields_pattern(
    *("NumNodes", "NumCPUs", "NumTasks", "Partition", "TimeLimit", "RunTime", "TRES", "AllocTRES"),
    *("TresPerNode", "TresPerJob", "TresPerTask", "TresPerSocket"),
)
_NODE_GRES = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")


def read_allocation() -> Optional[Allocation]:
    """The allocation that SLURM_JOB_ID names. Raises SchedulerError if it has ended or is another user's."""
    job_id = os.environ.get("SLURM_JOB_ID")
    if not job_id:
        return None
    argv = ["scontrol", "--oneliner", "--details", "show", "job", job_id]
    hint = "Leave this shell, or run: unset SLURM_JOB_ID"
    result = client.run(argv, timeout=TIMEOUT_SECONDS)
    if "Invalid job id" in result.stderr:
        raise SchedulerError(f"SLURM_JOB_ID is {job_id}: job not found", hint)
    if result.code != 0:
        raise SchedulerError(f"cannot look up job {job_id} (SLURM_JOB_ID): {client.error_text(result)}", hint)
    head = job.parse_head(result.stdout)
    if head.uid is not None and head.uid != os.getuid():
        raise SchedulerError(f"SLURM_JOB_ID is {job_id}: job of another user", hint)
    if job.parse_status(result.stdout).phase != "running" or head.state == "COMPLETING":
        raise SchedulerError(f"SLURM_JOB_ID is {job_id}: job is not running ({head.state})", hint)
    return parse_allocation(job_id, result.stdout, in_step=is_in_step(os.environ.get("SLURM_STEP_ID", "")))


def is_in_step(step_id: str) -> bool:
    """Whether SLURM_STEP_ID names a step that srun started, not the batch script or another special step."""
    return re.fullmatch(r"[0-9]{1,10}", step_id) is not None and int(step_id) < FIRST_SPECIAL_STEP


def parse_allocation(job_id: str, text: str, *, in_step: bool = False) -> Allocation:
    """The allocation in a record of `scontrol --details show job`."""
    fields = client.read_fields(job.strip_free_text(text), _FIELDS)
    nodes = max(1, client.read_count(fields.get("NumNodes", "")) or 1)
    memory = re.search(r"(?:^|,)mem=([^,]*)", _allocated(fields))
    return Allocation(
        job_id=job_id,
        nodes=nodes,
        partition=fields.get("Partition", ""),
        cpus=max(1, (client.read_count(fields.get("NumCPUs", "")) or 1) // nodes),
        gpus=_count_gpus(text, fields, nodes),
        memory=client.read_megabytes(memory[1]) // nodes if memory else 0,
        in_step=in_step,
        minutes_left=_minutes_left(fields),
    )


def _allocated(fields: dict[str, str]) -> str:
    return fields.get("AllocTRES") or fields.get("TRES", "")  # TRES until 22.05


def _count_gpus(text: str, fields: dict[str, str], nodes: int) -> Optional[int]:
    """GPUs per node; None if Slurm shows that there are some, but not how many on each node."""
    # --details shows every group of equal nodes. A step can use as many GPUs as the node with the fewest has.
    details = [parse_gres(gres)[0] for _, gres in _NODE_GRES.findall(text)]
    if any(details):
        return min(details) or None
    per_node = parse_gres(fields.get("TresPerNode", ""))[0]
    if per_node:
        return per_node
    total = (
        parse_tres(_allocated(fields))
        or parse_gres(fields.get("TresPerJob", ""))[0]
        or parse_gres(fields.get("TresPerTask", ""))[0] * (client.read_count(fields.get("NumTasks", "")) or 0)
    )
    if total and total % nodes == 0:
        return total // nodes
    mentioned = total or any("gpu" in fields.get(f"TresPer{unit}", "") for unit in ("Node", "Job", "Task", "Socket"))
    return None if mentioned else 0


def _minutes_left(fields: dict[str, str]) -> Optional[int]:
    """None without a limit. Both times are the controller's, so different clocks do no harm."""
    try:
        limit = time_limit.parse_limit(fields.get("TimeLimit", ""))
        used = time_limit.parse_limit(fields.get("RunTime", ""))
    except CtrainError:
        return None
    return None if limit is None or used is None else max(0, limit - used)
