"""Slurm's commands and their answers, as text: the same from 22.05 to 26.05, unlike its JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_runtime import command, time_limit
from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.facts import Allocation, Cluster, Partition
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.schedulers.handle import Status

SINFO = ("sinfo", "--noheader", "--format=%P|%a|%l|%D|%t|%c|%G")
WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
    "POWER_UP_NODE",
}
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
}


def cluster() -> Cluster:
    """What this Slurm is and has. Raises SchedulerError when it doesn't answer."""
    for program in ("sinfo", "sbatch", "srun", "scontrol"):
        if not command.which(program):
            raise SchedulerError(
                f"no scheduler here: {program} is not on PATH", "Run it on this machine with --site local"
            )
    try:
        partitions = partitions_now()
        version = command.run(["sinfo", "--version"]).stdout.split()[-1]
        offered = command.run(["srun", "--mpi=list"])
    except CtrainError as error:
        raise SchedulerError(f"Slurm does not answer: {error.message}", "Try again later, or ask the admins") from error
    return Cluster(version, partitions, parse_mpi_list(offered.stdout + offered.stderr), _allocation())


def partitions_now() -> tuple[Partition, ...]:
    """The partitions that are up. Raises CtrainError when Slurm doesn't answer."""
    return parse_sinfo(command.run(SINFO).stdout)


def _allocation() -> Optional[Allocation]:
    number = os.environ.get("SLURM_JOB_ID")
    if not number:
        return None
    answer = command.run(["scontrol", "--oneliner", "show", "job", number], check=False)
    if answer.code != 0:
        raise SchedulerError(
            f"SLURM_JOB_ID is {number}: {answer.last_error_line()}", "Leave this shell, or unset SLURM_JOB_ID"
        )
    return parse_allocation(number, answer.stdout)


def parse_allocation(number: str, text: str) -> Allocation:
    """The allocation in one line of `scontrol --oneliner show job`.

    The forms of TresPerNode are gres:gpu:2 (22.05) and gres/gpu:2, with a type before the number where it was named.
    """
    fields = dict(re.findall(r"(?:^|\s)(NumNodes|NumCPUs|Partition|TresPerNode)=(\S+)", text))
    nodes = int(fields.get("NumNodes", "1").split("-")[0])
    gpus, _ = parse_gres(re.sub(r"gres[:/]", "", fields.get("TresPerNode", "")))
    cpus = max(1, int(fields.get("NumCPUs", "1")) // nodes)
    return Allocation(number, nodes, fields.get("Partition", ""), cpus, gpus)


def parse_sinfo(text: str) -> tuple[Partition, ...]:
    """The partitions that are up, from the output of SINFO: a line for each kind and state of nodes."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        name, available, limit, nodes, state, cpus, gres = line.split("|", 6)
        if available != "up":
            continue
        gpus, kind = parse_gres(gres)
        idle = int(nodes) if state == "idle" else 0
        part = Partition(
            name.rstrip("*"),
            name.endswith("*"),
            int(nodes),
            idle,
            int(cpus.rstrip("+")),
            gpus,
            kind,
            time_limit.parse_limit(limit),
        )
        found[part.name] = _joined(found[part.name], part) if part.name in found else part
    return tuple(found.values())


def _joined(one: Partition, other: Partition) -> Partition:
    smaller = min(one, other, key=lambda part: part.gpus)
    return Partition(
        name=one.name,
        default=one.default,
        nodes=one.nodes + other.nodes,
        idle=one.idle + other.idle,
        cpus=min(one.cpus, other.cpus),
        gpus=smaller.gpus,
        gpu_type=smaller.gpu_type,
        time_limit=one.time_limit,
    )


def parse_gres(text: str) -> tuple[int, str]:
    """(GPUs, their type) of a node, from forms like gpu:a100:8(S:0-1), gpu:4, gpu:v100:2,nvme:1 and (null)."""
    total, kind = 0, ""
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *rest = part.split(":")
        if name == "gpu" and rest and rest[-1].isdigit():
            total += int(rest[-1])
            kind = rest[0] if len(rest) > 1 else kind
    return total, kind


def parse_mpi_list(text: str) -> tuple[str, ...]:
    """The plugins that `srun --mpi=list` names, in whatever sentences."""
    return tuple(dict.fromkeys(re.findall(r"\b(?:pmix(?:_v\d+)?|pmi2|none|cray_shasta|openmpi)\b", text)))


@dataclass(frozen=True)
class SlurmJob:
    """Implements Handle for a job that sbatch has accepted."""

    job_id: str

    @property
    def name(self) -> str:
        return f"job {self.job_id}"

    def status(self) -> Status:
        answer = command.run(["scontrol", "--oneliner", "show", "job", self.job_id], check=False)
        if answer.code == 0:
            return parse_job(answer.stdout)
        if "Invalid job id" in answer.stderr:  # Slurm forgets ended jobs after MinJobAge
            return Status("ended", "no longer known to Slurm")
        return Status("running", f"Slurm does not answer ({answer.last_error_line()}); still trying")

    def finish(self) -> None:
        """Nothing: Slurm's epilog can take minutes, and nobody needs to wait for it."""

    def cancel(self) -> None:
        try:
            command.run(["scancel", self.job_id])
        except CtrainError as error:
            raise SchedulerError(f"{self.name} can't be cancelled and may run on: {error.message}") from error


def parse_job(text: str) -> Status:
    """The status in one line of `scontrol --oneliner show job`. A state unknown here counts as running."""
    # The first of each: what a user wrote in the job's comment comes later.
    fields = dict(reversed(re.findall(r"(?:^|\s)(JobState|Reason)=(\S+)", text)))
    state, reason = fields.get("JobState", ""), fields.get("Reason", "None")
    if state in WAITING:
        return Status("waiting", reason)
    if state in ENDED:
        return Status("ended", state)
    return Status("running", "" if state in ("RUNNING", "COMPLETING") else state)


def submit(launch: Launch) -> SlurmJob:
    """Hand the job to sbatch. Raises SchedulerError with what Slurm said."""
    answer = command.run(
        launch.argv, cwd=Path(launch.plan.run_directory), env=dict(_clean(os.environ.items())), check=False
    )
    if answer.code != 0:
        said = re.sub(r"^sbatch: error: ", "", answer.last_error_line())
        raise SchedulerError(f"Slurm refused the job: {said}", f"Its script is {launch.argv[-1]}")
    return SlurmJob(answer.stdout.strip().split(";")[0])  # JOBID, or JOBID;CLUSTER on a federation


def _clean(variables: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Without SBATCH_*: they would override the script's directives unseen, and the plan would not be what runs."""
    return (item for item in variables if not item[0].startswith("SBATCH_"))
