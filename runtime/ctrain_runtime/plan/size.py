"""The size of a job, as requested and as granted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ctrain_runtime.cluster.model import Constraint, Partition
from ctrain_runtime.errors import ResourceError, UsageError
from ctrain_runtime.job import Count
from ctrain_runtime.store.manifest import Manifest


@dataclass(frozen=True)
class SizeRequest:
    """The request of the command line and the job. "auto": as many as fit (nodes of an allocation, GPUs of a node).

    `time` is as written, in Slurm's forms (base/time_limit); `time_is_explicit`: it is from the command line, so it
    must not be shortened silently. `partition` is "" if it may be chosen: for `image`, and for `account` and `qos` ("":
    the user's defaults). `spare_nodes` are those of `nodes` on which no ranks start. `hosts` are the names of nodes
    that must be used, `excluded` of those that must not; all need the `features` (None: an expression of the
    scheduler's), `other_features`, which none is known to have, GPUs of `gpu_type` ("": any) and `memory` MB (0: any).
    `in_reservation`: it names one.
    """

    nodes: Count = 1
    gpus_per_node: Count = "auto"
    ranks_per_node: Count = "auto"
    partition: str = ""
    time: str = "1:00:00"
    time_is_explicit: bool = False
    image: Optional[Manifest] = None
    account: str = ""
    qos: str = ""
    hosts: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    features: Optional[tuple[str, ...]] = ()
    other_features: tuple[str, ...] = ()
    gpu_type: str = ""
    memory: int = 0
    in_reservation: bool = False
    interactive: bool = False
    spare_nodes: int = 0


@dataclass(frozen=True)
class JobSize:
    """The resources of a job. `cpus_per_rank` counts the scheduler's CPUs (hardware threads on some clusters),
    `cores_per_rank` physical cores; `memory` is MB per node (None: the scheduler's default); `time_limit` is in
    minutes (None: no limit)."""

    nodes: int
    ranks_per_node: int
    gpus_per_node: int = 0
    cpus_per_rank: int = 1
    cores_per_rank: int = 1
    memory: Optional[int] = None
    time_limit: Optional[int] = None
    spare_nodes: int = 0  # of the job, besides `nodes`: for restarts in the place of bad ones

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class JobFit:
    """The size of a job where it fits: in a partition ("": on this machine), whose binding of ranks to cores is
    `cpu_bind` ("": left to the cluster). `chosen` is the partition as far as its nodes go that the job is sized for
    (None: unknown), and `constraint` what it asks for so as to get no others. `notes` are lines for the user: limits
    that were shortened or that do not apply."""

    size: JobSize
    partition: str = ""
    cpu_bind: str = ""
    chosen: Optional[Partition] = None
    constraint: Optional[Constraint] = None
    notes: tuple[str, ...] = ()


def resolve_count(option: str, count: Count, auto: int, least: int = 1) -> int:
    """`count` as a number; "auto" is `auto`. Raises UsageError if it is below `least`."""
    value = auto if isinstance(count, str) else count
    if value < least:
        raise UsageError(f"{option} must be at least {least}, not {value}")
    return value


def unused_gpus(request: SizeRequest, gpus: int, ranks: int) -> tuple[str, ...]:
    """A note on GPUs that nobody asked for and that ranks may not use: a rank is usually given one."""
    if ranks >= gpus or isinstance(request.gpus_per_node, int):
        return ()
    return (f"all {gpus} GPUs of a node are reserved; one per rank: --gpus-per-node {ranks}",)


def check_capacity(scope: str, unit: str, available: int, option: str, requested: int) -> None:
    """Raise ResourceError if `scope` has fewer than `requested` units, naming the largest number that fits."""
    if requested > available:
        plural = "" if available == 1 else "s"
        raise ResourceError(
            f"{scope} has {available or 'no'} {unit}{plural}, {requested} requested",
            f"Largest that fits: {option} {available}",
        )
