"""What is read from a batch script, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from ctrain_runtime.job import Count


@dataclass(frozen=True)
class Remark:
    """Why a line of the script is not in the job.

    `lost`: its effect is missing; otherwise ctrain provides it, or no job needs it.
    """

    line: int
    text: str
    reason: str
    lost: bool = True


@dataclass
class Request:
    """The requests in the head of a script, filled line by line.

    `sizes`: values as they are written, by the names of sbatch's options: nodes, ntasks, ntasks-per-node, gpus,
    gpus-per-node, gpus-per-task, time, chdir. `options`: words of `ctrain run`.
    """

    scheduler: str = ""
    sizes: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


@dataclass(frozen=True)
class Launch:
    """The command of a script that starts a container, or ranks without one.

    `starter` is what starts its tasks, as srun or mpiexec ("": the command runs once); `sizes` are the starter's, named
    as in Request; `mpi` is the --mpi of srun. `image` is "" without a container. `directory` is where the program
    starts, None if that is unknown. Texts may have parts that are unknown (variables.py).
    """

    line: int
    text: str
    starter: str
    sizes: dict[str, str]
    mpi: str
    image: str
    mounts: tuple[str, ...]
    env: dict[str, str]
    directory: Optional[str]
    program: tuple[str, ...]
    gpus: bool
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class BatchJob:
    """The job that does what the launch in a `line` of a script did: keys of job.yaml, and words of `ctrain run`.

    `gpus_per_node` and `ranks_per_node` are "auto" if the script does not say. `directory` is where the program starts,
    None if that is unknown.
    """

    line: int
    image: str
    command: tuple[str, ...]
    launcher: str
    nodes: int
    gpus_per_node: Count
    ranks_per_node: Count
    time: str
    env: dict[str, str]
    options: tuple[str, ...]
    directory: Optional[str]
    remarks: tuple[Remark, ...]
