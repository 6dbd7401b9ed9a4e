"""Facts of a PBS cluster: its queues with the nodes that serve them, and the caller's allocation."""

from __future__ import annotations

import contextlib
import grp
import os
import re
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.base import time_limit
from ctrain_runtime.base.text import user_name
from ctrain_runtime.base.time_limit import NodeRange
from ctrain_runtime.cluster.groups import change_nodes, group, usual
from ctrain_runtime.cluster.model import MAINTENANCE, RESERVED, Allocation, Cluster, Node, Partition
from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.schedulers.pbs import client, ownership
from ctrain_runtime.schedulers.pbs.script import HYDRA, PALS, PALS_PMIX
from ctrain_runtime.site.model import Site

COMMANDS = ("qsub", "qstat", "qselect", "qdel", "pbsnodes")
# States in which a host starts no job, but will (man pbs_node_attributes). Of several the first is named; others only
# show that it is in use.
UNAVAILABLE = {
    "maintenance": MAINTENANCE,
    "offline": "offline",
    **dict.fromkeys(("down", "state-unknown", "stale", "unresolvable"), "down"),
    "resv-exclusive": RESERVED,
    **dict.fromkeys(("initializing", "wait-provisioning"), "starting"),
}
NO_FEATURES = ("host", "vnode", "mem", "vmem", "ncpus", "ngpus", "nmics")  # resources that are no property of a host

ROUTES = "route_destinations"
CLOSED = "closed to"
_PROPERTY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")  # of a chunk, as it is; a number is an amount

Objects = dict[str, dict[str, Any]]


def read_cluster(site: Site) -> Cluster:
    """The cluster as it is now. Raises SchedulerError if it does not answer."""
    with ThreadPoolExecutor(4) as pool:  # the commands wait for the server
        current = pool.submit(read_allocation)
        server = pool.submit(client.ask, "qstat", "-B", "-f", "-F", "json", kind="Server")
        queues = pool.submit(client.ask, "qstat", "-Q", "-f", "-F", "json", kind="Queue")
        nodes = pool.submit(client.ask, "pbsnodes", "-a", "-F", "json", kind="nodes")
        parts = parse_queues(queues.result(), parse_hosts(nodes.result()), server.result())
        return Cluster(
            partitions=tuple(_with_cores(part, site) for part in parts if not part.closed),
            closed=tuple(part for part in parts if part.closed),
            mpi=tuple(flavour for flavour in site.mpi if _starts(flavour)),
            allocation=current.result(),
            memory_is_consumable=True,
            name=next(iter(server.result()), ""),
        )


def _with_cores(part: Partition, site: Site) -> Partition:
    """PBS does not tell how many of the CPUs that it counts are one core."""
    described = site.partitions.get(part.name)
    if not described:
        return part
    threads = described.threads_per_core
    return change_nodes(part, lambda one: replace(one, threads_per_core=threads))


def _starts(flavour: str) -> bool:
    return flavour in (PALS, PALS_PMIX) or (flavour == HYDRA and _has_hydra())


def _has_hydra() -> bool:
    """Whether the mpiexec on PATH here is Hydra's: MPI libraries of other kinds have one, too."""
    try:
        return "HYDRA" in client.run(["mpiexec", "--version"]).stdout
    except CtrainError:
        return False


def parse_hosts(nodes: Objects) -> tuple[Node, ...]:
    """The hosts in the output of `pbsnodes -a`, which lists vnodes; one that serves a single queue belongs to it."""
    vnodes: dict[str, list[dict[str, Any]]] = {}
    for name, node in nodes.items():
        vnodes.setdefault(str(client.mapping(node, "resources_available").get("host", name)), []).append(node)
    return tuple(_host(name, parts) for name, parts in vnodes.items())


def _host(name: str, vnodes: list[dict[str, Any]]) -> Node:
    """A host: the sum of its vnodes."""
    available = [client.mapping(node, "resources_available") for node in vnodes]
    states = {state for node in vnodes for state in str(node.get("state", "state-unknown")).split(",")}
    return Node(
        name=name,
        partitions=tuple(str(node["queue"]) for node in vnodes if node.get("queue"))[:1],
        unavailable=next((text for state, text in UNAVAILABLE.items() if state in states), ""),
        idle=states == {"free"} and not any(node.get("jobs") for node in vnodes),
        cpus=sum(client.read_count(has.get("ncpus")) for has in available),
        gpus=sum(client.read_count(has.get("ngpus")) for has in available),
        memory=sum(client.read_megabytes(has.get("mem")) for has in available),
        gpu_type=next((str(has["accelerator_model"]) for has in available if has.get("accelerator_model")), ""),
        features=frozenset(_features(available)),
    )


def _features(available: list[dict[str, Any]]) -> Iterator[str]:
    """What chunks can select a host by: NAME=VALUE of resources that are no amount, and that all its vnodes with CPUs
    share."""
    available = [has for has in available if client.read_count(has.get("ncpus"))] or available
    for name, value in available[0].items():
        is_property = name not in NO_FEATURES and isinstance(value, str) and _PROPERTY.fullmatch(value)
        if is_property and all(has.get(name) == value for has in available):
            yield f"{name}={value}"


def parse_queues(queues: Objects, hosts: tuple[Node, ...], servers: Objects) -> tuple[Partition, ...]:
    """The queues in the output of `qstat -Q`; `servers` is that of `qstat -B`."""
    server = next(iter(servers.values()), {})
    parts = {name: _partition(name, queue, hosts, server) for name, queue in queues.items()}
    return tuple(
        _routed(part, [parts[name] for name in _list(queues[part.name], ROUTES) if name in parts])
        for part in parts.values()
    )


def _list(queue: dict[str, Any], name: str) -> list[str]:
    return [item.strip() for item in str(queue.get(name, "")).split(",")]


def _routed(part: Partition, destinations: list[Partition]) -> Partition:
    """A routing queue has the widest of the limits of its destinations, as far as its own allow; and of time that of
    the destination that takes a job's nodes: PBS would take the job, find none for it, and drop it without a word."""
    if not destinations:
        return part
    destinations = [queue for queue in destinations if not queue.closed.startswith(CLOSED)] or destinations

    def widest(name: str) -> Any:
        limits = [getattr(queue, name) for queue in destinations]
        known = (limit for limit in (getattr(part, name), None if None in limits else max(limits)) if limit is not None)
        return min(known, default=None)

    fewest = max(part.min_nodes, min(queue.min_nodes for queue in destinations))
    ranges = tuple(NodeRange(queue.min_nodes, queue.max_nodes, queue.time_limit) for queue in destinations)
    limits = {name: widest(name) for name in ("max_nodes", "max_gpus", "time_limit")}
    shortest = max(part.min_time, min(queue.min_time for queue in destinations))
    return replace(part, min_nodes=fewest, min_time=shortest, by_nodes=ranges, **limits)


def _closed(queue: dict[str, Any]) -> str:
    """Why a queue takes or starts no jobs of the caller; "" if it does (man pbs_queue_attributes)."""
    user, is_set = user_name(os.getuid()), {name for name, value in queue.items() if value == "True"}
    if "acl_user_enable" in is_set and not _admits(_list(queue, "acl_users"), {user}):
        return f"{CLOSED} {user}"
    if "acl_group_enable" in is_set and not _admits(_list(queue, "acl_groups"), _groups()):
        return f"{CLOSED} the groups of {user}"
    if "from_route_only" in is_set:
        return "reached only through other queues"
    return next((text for name, text in (("enabled", "disabled"), ("started", "stopped")) if name not in is_set), "")


def _admits(entries: list[str], names: Set[str]) -> bool:
    """Whether an access list admits one of `names`: the first entry that matches decides (OpenPBS's source, acl_check).

    From which host does not count; so an entry that closes only some hosts does not match.
    """
    is_open = False
    for entry in entries:
        name, _, host = entry.lstrip("+-").partition("@")
        if not name:
            is_open = entry == "+"
        elif name in names and not (entry[0] == "-" and host not in ("", "*")):
            return entry[0] != "-"
    return is_open


def _groups() -> Set[str]:
    names = set()
    for number in {os.getgid(), *os.getgroups()}:
        with contextlib.suppress(KeyError):
            names.add(grp.getgrgid(number).gr_name)
    return names


def _partition(name: str, queue: dict[str, Any], hosts: tuple[Node, ...], server: dict[str, Any]) -> Partition:
    names = {name, *_list(queue, ROUTES)}
    own = [host for host in hosts if names & set(host.partitions)] or [host for host in hosts if not host.partitions]
    limits = {**client.mapping(server, "resources_max"), **client.mapping(queue, "resources_max")}
    part = Partition(
        name=name,
        default=name == server.get("default_queue"),
        nodes=0,
        cpus=0,
        gpus=0,
        time_limit=read_minutes(limits.get("walltime")),
        min_nodes=client.read_count(client.mapping(queue, "resources_min").get("nodect")) or 1,
        max_nodes=client.read_count(limits.get("nodect")) or None,
        max_gpus=client.read_count(limits["ngpus"]) if "ngpus" in limits else None,
        min_time=read_minutes(client.mapping(queue, "resources_min").get("walltime")) or 0,
        closed=_closed(queue),
        has_memory_default=any("mem" in client.mapping(one, "default_chunk") for one in (server, queue)),
    )
    return usual(part, group(own))


def read_minutes(value: object) -> Optional[int]:
    """A time as PBS writes it (HH:MM:SS) in minutes, rounded up; None for anything else."""
    try:
        return time_limit.parse_limit(str(value))
    except CtrainError:
        return None


def read_allocation() -> Optional[Allocation]:
    """The allocation that PBS_JOBID names. Raises SchedulerError if it has ended or cannot be used here."""
    job_id = os.environ.get("PBS_JOBID", "")
    if not job_id:
        return None
    hint = "Leave this shell, or run: unset PBS_JOBID"
    if not Path(os.environ.get("PBS_NODEFILE", "")).is_file():
        raise SchedulerError(f"PBS_JOBID is {job_id}, but PBS_NODEFILE names no file here", hint)
    try:
        record, _ = ownership.read_record(job_id)
    except CtrainError as error:
        raise SchedulerError(f"cannot look up job {job_id} (PBS_JOBID): {error.message}", hint) from error
    if record is None:
        raise SchedulerError(f"PBS_JOBID is {job_id}: job not found", hint)
    if record.get("job_state") != "R":
        raise SchedulerError(f"PBS_JOBID is {job_id}: job is not running ({record.get('job_state')})", hint)
    return parse_allocation(job_id, record)


def parse_allocation(job_id: str, record: Mapping[str, Any]) -> Allocation:
    """The allocation in the record of a running job; of unequal nodes, the smallest counts."""
    hosts = client.read_hosts(dict(record))
    limit = read_minutes(client.mapping(record, "Resource_List").get("walltime"))
    used = read_minutes(client.mapping(record, "resources_used").get("walltime")) or 0
    return Allocation(
        job_id=job_id,
        nodes=max(1, len(hosts)),
        partition=str(record.get("queue", "")),
        cpus=max(1, min((host["ncpus"] for host in hosts.values()), default=1)),
        gpus=min((host["ngpus"] for host in hosts.values()), default=0),
        memory=min((host["mem"] for host in hosts.values()), default=0),
        minutes_left=None if limit is None else max(0, limit - used),
    )
