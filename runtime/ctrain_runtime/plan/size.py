"""How large a job is: what is requested, and what the scheduler grants. The rules are each scheduler's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ctrain_runtime.errors import ResourceError, UsageError
from ctrain_runtime.job import Count


@dataclass(frozen=True)
class SizeRequest:
    """What the command line and the job ask for. "auto": as many as fit (nodes of an allocation, GPUs of a node).

    `time` is as written, in Slurm's forms (time_limit.py); `time_is_explicit`: it stands on the command line, so
    it must not be shortened silently. `partition` is "" when none is named.
    """

    nodes: Count = 1
    gpus_per_node: Count = "auto"
    ranks_per_node: Count = "auto"
    partition: str = ""
    time: str = "1:00:00"
    time_is_explicit: bool = False


@dataclass(frozen=True)
class JobSize:
    """What a job gets. `cpus_per_rank` counts what the scheduler counts (hardware threads where it does), and
    `cores_per_rank` physical cores; `memory` is MB per node (None: the scheduler's default); `time_limit` is in
    minutes (None: no limit); `cpu_bind` is how ranks are bound to cores ("": as the cluster does by itself). `notes`
    are lines for the user: limits that were shortened or that do not apply.
    """

    nodes: int
    ranks_per_node: int
    gpus_per_node: int = 0
    cpus_per_rank: int = 1
    cores_per_rank: int = 1
    memory: Optional[int] = None
    partition: str = ""
    time_limit: Optional[int] = None
    cpu_bind: str = ""
    notes: tuple[str, ...] = ()


def resolve_count(option: str, count: Count, auto: int, least: int = 1) -> int:
    """The number that `count` means where "auto" is `auto`. Raises UsageError when it is below `least`."""
    value = auto if isinstance(count, str) else count
    if value < least:
        raise UsageError(f"{option} must be at least {least}, not {value}")
    return value


def check_capacity(scope: str, unit: str, available: int, option: str, requested: int) -> None:
    """Raise ResourceError when `scope` has fewer than `requested` units, naming the largest number that fits."""
    if requested > available:
        plural = "" if available == 1 else "s"
        raise ResourceError(
            f"{scope} has {available or 'no'} {unit}{plural}, {requested} requested",
            f"Largest that fits: {option} {available}",
        )
