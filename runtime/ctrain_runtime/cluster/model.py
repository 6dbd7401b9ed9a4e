"""A scheduler's cluster as data: its partitions, their limits, the allocation around the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from ctrain_runtime.base.time_limit import NodeRange

MAINTENANCE, RESERVED = "in maintenance", "reserved"  # why a node that a reservation holds starts no other jobs


@dataclass(frozen=True)
class Access:
    """The accounts or QOS that may use a partition: those `allowed`; if it is empty, all that are not `denied`."""

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    def admits(self, name: str) -> bool:
        """Whether `name` may use it; an unknown name ("") is not refused."""
        return not name or (name in self.allowed if self.allowed else name not in self.denied)


@dataclass(frozen=True)
class Node:
    """A node as its scheduler shows it; CPUs, GPUs and memory (MB) as in Partition.

    `partitions` are those that it belongs to (empty: PBS's hosts that serve all queues but those with hosts of their
    own). `features` are what a job can ask for, as the scheduler writes it. `unavailable` is why it starts no jobs now
    ("": it does); `idle`: it has none.
    """

    partitions: tuple[str, ...]
    idle: bool
    cpus: int
    gpus: int = 0
    gpu_type: str = ""
    threads_per_core: int = 1
    memory: int = 0
    arch: str = ""
    has_binding_policy: bool = False
    name: str = ""
    features: frozenset[str] = frozenset()
    unavailable: str = ""


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that have one shape, as in Node; `memory` is the least that one has. `nodes` can be used;
    of the others of `names`, `unavailable` says why they start no jobs now."""

    cpus: int
    gpus: int = 0
    gpu_type: str = ""
    threads_per_core: int = 1
    memory: int = 0
    arch: str = ""
    features: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    nodes: int = 0
    idle: int = 0
    unavailable: tuple[str, ...] = ()

    @property
    def existing(self) -> int:
        return self.nodes + len(self.unavailable)


@dataclass(frozen=True)
class Constraint:
    """What keeps a job from nodes that have its CPUs, GPUs and memory, and are none for it: all of the `features`, the
    type of its GPUs, or the names of nodes that it must not get."""

    features: tuple[str, ...] = ()
    gpu_type: str = ""
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Partition:
    """A partition or queue, as far as one kind of its nodes goes: the `groups` whose nodes a job can be spread over.
    Its `others` are not counted in what follows (both are empty where nobody tells its nodes apart).

    `nodes` are those that can be used, and `unavailable` why each of the rest starts no jobs now; a job waits for
    these. CPUs, GPUs and memory are the least that a node has.

    `cpus` are schedulable ones (hardware threads where the scheduler counts them, without cores reserved for the
    system); `memory` is in MB (0: unknown); `time_limit` in minutes (None: no limit); `arch` is the output of
    `uname -m` on its nodes ("": unknown, or several). One job may use from `min_nodes` to `max_nodes`, and `max_gpus`
    (None: no limit). `closed` is why it takes or starts no jobs of the caller ("": it does). `own_qos` is the QOS whose
    limits hold for its jobs; `limited_by` says whose limits these are, if not its own.
    `has_memory_default`: a job that requests no memory gets a share that the administrators chose.
    `cpu_bind` is the binding of ranks to cores ("": left to the cluster, or not supported).
    `idle` are the usable nodes without a job (None: unknown). `preemptible`: its jobs make way for those of others.
    `driver` is the version of NVIDIA's ("": unknown). `by_nodes` are the limits of time that depend on the number of
    nodes; a job outside of all of them would never start. Of a user's jobs `max_running` run at a time, and
    `max_submitted` may wait or run (None: unknown, or no limit).
    """

    name: str
    default: bool
    nodes: int
    cpus: int
    gpus: int
    gpu_type: str = ""
    time_limit: Optional[int] = None
    threads_per_core: int = 1
    memory: int = 0
    arch: str = ""
    min_nodes: int = 1
    max_nodes: Optional[int] = None
    max_gpus: Optional[int] = None
    closed: str = ""
    own_qos: str = ""
    limited_by: str = ""
    has_memory_default: bool = False
    cpu_bind: str = ""
    idle: Optional[int] = None
    preemptible: bool = False
    accounts: Access = Access()
    qos: Access = Access()
    driver: str = ""
    by_nodes: tuple[NodeRange, ...] = ()
    max_running: Optional[int] = None
    max_submitted: Optional[int] = None
    min_time: int = 0  # minutes that a job must ask for
    unavailable: tuple[str, ...] = ()
    groups: tuple[NodeGroup, ...] = ()
    others: tuple[NodeGroup, ...] = ()

    @property
    def existing(self) -> int:
        """The nodes that a job can wait for."""
        return self.nodes + len(self.unavailable)

    @property
    def scope(self) -> str:
        """Its name in messages about limits."""
        return f"partition {self.name}" + (f" ({self.limited_by})" if self.limited_by else "")


@dataclass(frozen=True)
class Limits:
    """The most that one job may use; `time_limit` is in minutes (None: no limit). `overrides`: a QOS that precedes that
    of the partition."""

    max_nodes: Optional[int] = None
    max_gpus: Optional[int] = None
    time_limit: Optional[int] = None
    overrides: bool = False


@dataclass(frozen=True)
class Allocation:
    """The allocation (salloc, sbatch) inside which ctrain was called; CPUs, GPUs and memory (MB) are those of a node in
    it (`gpus` None: the scheduler does not show how many). `in_step`: ctrain itself runs in a job step (an interactive
    srun), whose resources a second step must share. `minutes_left` is what remains of its time limit (None: no limit).
    """

    job_id: str
    nodes: int
    partition: str
    cpus: int
    gpus: Optional[int]
    memory: int = 0
    in_step: bool = False
    minutes_left: Optional[int] = None


@dataclass(frozen=True)
class Machine:
    """A machine without a scheduler: its GPUs and cores that programs may use; `scope` is its name in messages."""

    gpus: int
    cores: int
    scope: str = "this machine"


@dataclass(frozen=True)
class Cluster:
    """A scheduler's cluster, or one `machine` in its place. `mpi`: the scheduler's plugins that start MPI ranks.

    `memory_is_consumable`: memory is allocated like cores, so a job must ask for its share. `account` and `qos` are the
    caller's defaults, `name` is the cluster's ("": unknown). `clock_skew` is how many seconds the controller's clock is
    ahead (None: unknown). `partitions` are open, `closed` are not. `members` are the names of each partition's nodes,
    if known; `limits` those of "QOS NAME" and "account NAME", if enforced. `can_select`: a job can name the
    type of its GPUs, and nodes that it must not get.
    """

    partitions: tuple[Partition, ...] = ()
    mpi: tuple[str, ...] = ()
    allocation: Optional[Allocation] = None
    memory_is_consumable: bool = False
    account: str = ""
    qos: str = ""
    name: str = ""
    clock_skew: Optional[float] = None
    closed: tuple[Partition, ...] = ()
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)
    limits: Mapping[str, Limits] = field(default_factory=dict)
    machine: Optional[Machine] = None
    can_select: bool = False
