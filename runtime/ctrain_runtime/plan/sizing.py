"""Fits a job to a cluster: its partition, and the nodes, GPUs, CPUs, memory and time that it gets there. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Optional

from ctrain_runtime.base import time_limit
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.cluster import groups
from ctrain_runtime.cluster.model import Allocation, Cluster, Machine, Partition
from ctrain_runtime.errors import ConfigError, ResourceError, SchedulerError, UsageError
from ctrain_runtime.plan.node_choice import keep_apart, narrow, of_allocation, sort_features
from ctrain_runtime.plan.partition_choice import choose_partition, hosts_elsewhere, limit, others_that_take
from ctrain_runtime.plan.size import JobFit, JobSize, SizeRequest, check_capacity, resolve_count, unused_gpus
from ctrain_runtime.site.model import Site
from ctrain_runtime.store.manifest import Manifest

OTHERS = 5  # partitions that a complaint names, at most


def fit(
    request: SizeRequest, cluster: Cluster, site: Site, find_image: Callable[[], Optional[Manifest]] = lambda: None
) -> JobFit:
    """Where a job fits, and its size there; inside an allocation that of a step, and of a run on a machine without a
    scheduler.

    What fits nowhere is refused before `find_image` is called, which may pull an image: it is for the choice among
    partitions that fit. Raises UsageError, ResourceError or SchedulerError if none does.
    """
    if cluster.machine:
        return _fit_machine(request, site, cluster.machine)
    if cluster.allocation:
        return _fit_allocation(request, cluster, site, cluster.allocation)
    if not cluster.partitions:
        closed = "".join(f"; {part.name} is {part.closed}" for part in cluster.closed)
        raise SchedulerError(f"no partition is up{closed}", "Retry later, or ask the administrators")
    request = sort_features(request, cluster)
    cluster = limit(request, cluster)
    narrowed, preferred, reasons = _choose(request, cluster, site)
    fitted = _fit_or_name_others(request, narrowed, site, preferred)
    image = find_image()
    if image:
        request = replace(request, image=image)
        narrowed, partition, reasons = _choose(request, cluster, site)
        if partition != preferred or partition.others:  # the image may be for some of its nodes
            fitted = _fit_or_name_others(request, narrowed, site, partition)
    return replace(fitted, notes=(*reasons, *fitted.notes))


def _choose(request: SizeRequest, cluster: Cluster, site: Site) -> tuple[Cluster, Partition, tuple[str, ...]]:
    """The partition that is named, or else the best one, as far as its nodes go that a job is sized for; with the
    cluster of such partitions, and the reasons."""
    cluster = _narrow(request, cluster)
    name = request.partition or ("" if hosts_elsewhere(request, cluster, site.partition) else site.partition)
    if name:
        return cluster, _find_partition(name, cluster), ()
    return cluster, *choose_partition(request, cluster, site.partition_order)


def _fit_or_name_others(request: SizeRequest, cluster: Cluster, site: Site, partition: Partition) -> JobFit:
    try:
        return _fit_partition(request, cluster, site, partition)
    except ResourceError as error:
        others = ", ".join(others_that_take(request, cluster, partition)[:OTHERS])
        hint = f"{error.hint}; other partitions take it as it is: {others}" if others else error.hint
        everything = (*partition.groups, *partition.others)
        nodes = f" ({partition.name} has {groups.describe(everything, everything)})" if partition.others else ""
        raise ResourceError(f"{error.message}{nodes}", hint) from error


def _narrow(request: SizeRequest, cluster: Cluster) -> Cluster:
    parts = (narrow(request, part, by_memory=_asks_for_memory(cluster, part)) for part in cluster.partitions)
    return replace(cluster, partitions=tuple(parts))


def _asks_for_memory(cluster: Cluster, part: Partition) -> bool:
    return cluster.memory_is_consumable and not part.has_memory_default


def _fit_machine(request: SizeRequest, site: Site, machine: Machine) -> JobFit:
    """Nodes are groups of ranks there, which share its cores."""
    if request.partition:
        problem = f"site {site.name} has no partitions"
        raise UsageError(problem, "Remove --partition, or select a cluster with --site")
    if request.spare_nodes:
        problem = f"site {site.name} has one node: --spare-nodes has no use"
        raise UsageError(problem, "Remove it; --restarts works without")
    nodes = resolve_count("--nodes", request.nodes, 1)
    gpus = resolve_count("--gpus-per-node", request.gpus_per_node, machine.gpus, least=0)
    check_capacity(machine.scope, "GPU", machine.gpus, "--gpus-per-node", gpus)
    ranks = resolve_count("--ranks-per-node", request.ranks_per_node, gpus or 1)
    notes = unused_gpus(request, gpus, ranks)
    if request.time_is_explicit:
        notes += (f"--time does not apply to site {site.name}: nothing ends the run",)
    cores = max(1, machine.cores // (nodes * ranks))
    return JobFit(JobSize(nodes, ranks, gpus, cores, cores), notes=notes)


def _fit_partition(request: SizeRequest, cluster: Cluster, site: Site, partition: Partition) -> JobFit:
    nodes = resolve_count("--nodes", request.nodes, 1)
    _check_nodes(partition, nodes)
    scope = f"a node of partition {partition.name}"
    gpus, ranks = _gpus_and_ranks(request, scope, partition.cpus, partition.gpus)
    _check_gpus(partition, nodes, gpus)
    minutes, notes = _time_limit(request, _limit_interactive(request, partition, site))
    may_ask = "memory" not in site.not_requested
    ask_memory = _asks_for_memory(cluster, partition)
    memory = _memory(partition, gpus, ask_memory, site.memory_per_gpu) if may_ask else None
    size = replace(_share(partition, nodes, gpus, ranks, site), memory=memory, time_limit=minutes)
    size = _spare(size, request)
    constraint, kinds = keep_apart(request, cluster, partition, size)
    notes = (*kinds, *unused_gpus(request, gpus, ranks), *_waits_for(partition, nodes), *notes)
    return JobFit(size, partition.name, partition.cpu_bind, partition, constraint, notes)


def _fit_allocation(request: SizeRequest, cluster: Cluster, site: Site, allocation: Allocation) -> JobFit:
    scope = f"allocation {allocation.job_id}"
    nodes = resolve_count("--nodes", request.nodes, allocation.nodes)
    check_capacity(scope, "node", allocation.nodes, "--nodes", nodes)
    known = next((part for part in cluster.partitions if part.name == allocation.partition), None)
    known = known and of_allocation(known, allocation)
    gpus, ranks = _gpus_and_ranks(request, f"a node of {scope}", allocation.cpus, allocation.gpus)
    limits = Partition(
        name=allocation.partition,
        default=False,
        nodes=allocation.nodes,
        cpus=allocation.cpus,
        gpus=gpus if allocation.gpus is None else allocation.gpus,
        threads_per_core=known.threads_per_core if known else 1,
        memory=allocation.memory,
        cpu_bind=known.cpu_bind if known else "",
    )
    # A step without a share of its own takes all memory of the allocation, and a second one waits for it.
    ask_memory = cluster.memory_is_consumable and gpus < limits.gpus and "memory" not in site.not_requested
    memory, notes = _memory(limits, gpus, ask_memory, None), _ignored_in_allocation(request, allocation)
    notes = (*unused_gpus(request, gpus, ranks), *notes)
    if nodes <= request.spare_nodes:
        raise ResourceError(f"{scope} has {nodes} nodes, all of them spare", "Pass fewer --spare-nodes")
    size = replace(_share(limits, nodes, gpus, ranks, site), memory=memory, time_limit=allocation.minutes_left)
    return JobFit(_spare(size, request), limits.name, limits.cpu_bind, known, notes=notes)


def _spare(size: JobSize, request: SizeRequest) -> JobSize:
    return replace(size, nodes=size.nodes - request.spare_nodes, spare_nodes=request.spare_nodes)


def _share(limits: Partition, nodes: int, gpus: int, ranks: int, site: Site) -> JobSize:
    """The size of a job with `gpus` and `ranks` per node, and the cores that go with them."""
    cpus = _cpus_per_rank(limits, gpus, ranks, site.cpus_per_gpu)
    cores = max(1, cpus // limits.threads_per_core)
    return JobSize(nodes, ranks, gpus, cpus, cores)


def _check_nodes(partition: Partition, nodes: int) -> None:
    """Raise ResourceError if a job of so many nodes could never start in the partition."""
    most, scope = partition.max_nodes, partition.scope
    existing = partition.existing
    if most is not None and nodes > most and most < existing:
        problem = f"{scope} allows {most} nodes per job, {nodes} requested"
        raise ResourceError(problem, _or_another_qos(f"Largest that fits: --nodes {most}", partition))
    unit = "suitable node" if partition.others else "usable node"
    check_capacity(f"partition {partition.name}", unit, existing, "--nodes", nodes)
    fewer = [one.most for one in partition.by_nodes if one.most is not None and one.most < nodes]
    if nodes < partition.min_nodes and fewer:  # between two ranges
        hint = f"Nearest that fit: --nodes {max(fewer)} or --nodes {partition.min_nodes}"
        raise ResourceError(f"{scope} takes no jobs of {nodes} nodes", hint)
    if nodes < partition.min_nodes:
        problem = f"{scope} needs at least {partition.min_nodes} nodes per job, {nodes} requested"
        raise ResourceError(problem, f"Smallest that fits: --nodes {partition.min_nodes}")


def _waits_for(partition: Partition, nodes: int) -> tuple[str, ...]:
    """A note on nodes that a job waits for, as sbatch queues it."""
    if nodes <= partition.nodes:
        return ()
    unit = f"{'suitable' if partition.others else 'usable'} node{'' if partition.nodes == 1 else 's'}"
    reasons = ", and ".join(
        f"{count} {'is' if count == 1 else 'are'} {reason}" for reason, count in Counter(partition.unavailable).items()
    )
    return (f"partition {partition.name} has {partition.nodes or 'no'} {unit}, and {reasons}: the job waits for them",)


def _check_gpus(partition: Partition, nodes: int, gpus: int) -> None:
    """Raise ResourceError if the partition allows no job so many GPUs."""
    most = partition.max_gpus
    if most is not None and nodes * gpus > most:
        problem = f"{partition.scope} allows {most} GPUs per job, {nodes * gpus} requested"
        raise ResourceError(problem, f"Largest that fits: --gpus-per-node {most // nodes}")


def _or_another_qos(hint: str, partition: Partition) -> str:
    return f"{hint}; another QOS may allow more: --qos NAME" if "QOS" in partition.limited_by else hint


def _find_partition(name: str, cluster: Cluster) -> Partition:
    part = next((part for part in (*cluster.partitions, *cluster.closed) if part.name == name), None)
    if part and not part.closed:
        return part
    names = [part.name for part in cluster.partitions]
    available = f"Available: {', '.join(names)}"
    if part:
        raise ResourceError(f"partition {name} is {part.closed}", available)
    hint = suggest(name, names) or available
    raise ResourceError(f"partition {name!r} not found among those that are up", hint)


def _gpus_and_ranks(request: SizeRequest, scope: str, cpus: int, gpus: Optional[int]) -> tuple[int, int]:
    """GPUs and ranks per node; `gpus` is the number that a node has, None if unknown."""
    if gpus is None and isinstance(request.gpus_per_node, str):
        raise SchedulerError(
            f"the scheduler does not show how many GPUs {scope} has", "Pass the number: --gpus-per-node N"
        )
    requested = resolve_count("--gpus-per-node", request.gpus_per_node, gpus or 0, least=0)
    if gpus is not None:
        check_capacity(scope, "GPU", gpus, "--gpus-per-node", requested)
    ranks = resolve_count("--ranks-per-node", request.ranks_per_node, requested or 1)
    check_capacity(scope, "CPU", cpus, "--ranks-per-node", ranks)
    return requested, ranks


def _cpus_per_rank(limits: Partition, gpus: int, ranks: int, cpus_per_gpu: Optional[int]) -> int:
    """The GPUs' share of the CPUs, divided among the ranks, in whole cores, as schedulers allocate them."""
    share = limits.cpus
    if gpus and cpus_per_gpu is not None:
        share = min(share, gpus * cpus_per_gpu)
    elif limits.gpus:
        share = share * max(1, gpus) // limits.gpus  # a job without GPUs leaves the other GPUs their CPUs, too
    cpus = share // ranks
    return max(1, cpus - cpus % limits.threads_per_core if cpus > limits.threads_per_core else cpus)


def _memory(limits: Partition, gpus: int, ask: bool, memory_per_gpu: Optional[int]) -> Optional[int]:
    """MB per node; None: the scheduler's default."""
    if gpus and memory_per_gpu is not None:
        return min(gpus * memory_per_gpu, limits.memory or gpus * memory_per_gpu)
    if not ask or not limits.memory:
        return None
    return limits.memory * max(1, gpus) // limits.gpus if limits.gpus else limits.memory


def _time_limit(request: SizeRequest, partition: Partition) -> tuple[Optional[int], tuple[str, ...]]:
    """The limit in minutes, and a note if it was shortened, as a job's default is; an explicit --time is an error."""
    requested = time_limit.parse_limit(request.time)
    if requested == 0:
        raise UsageError(f"--time must be at least one minute, not {request.time!r}")
    if requested is not None and requested < partition.min_time:
        least = time_limit.format_limit(partition.min_time)
        problem = f"partition {partition.name} needs at least {least} per job, {request.time} requested"
        raise ResourceError(problem, f"Shortest that fits: --time {least}")
    longest = partition.time_limit
    if longest is None or (requested is not None and requested <= longest):
        return requested, ()
    text = time_limit.format_limit(longest)
    if request.time_is_explicit:
        raise ResourceError(
            f"{partition.scope} allows {text}, {request.time} requested",
            _or_another_qos(f"Longest that fits: --time {text}", partition),
        )
    return longest, (f"time limit shortened from {request.time} to {text}, the maximum of {partition.scope}",)


def _limit_interactive(request: SizeRequest, partition: Partition, site: Site) -> Partition:
    """The partition with the site's limit of interactive jobs, for one of these. Raises ConfigError."""
    if not request.interactive or not site.interactive_time:
        return partition
    try:
        most = time_limit.parse_limit(site.interactive_time)
    except UsageError as error:
        raise ConfigError(f"site {site.name}: interactive_time: {error.message}", error.hint) from error
    if most is None or (partition.time_limit is not None and partition.time_limit <= most):
        return partition
    return replace(partition, time_limit=most, limited_by="interactive jobs")


def _ignored_in_allocation(request: SizeRequest, allocation: Allocation) -> tuple[str, ...]:
    notes = []
    if request.time_is_explicit:
        left = allocation.minutes_left
        limit = "it has no time limit" if left is None else f"{time_limit.format_limit(left)} of its time is left"
        notes.append(f"--time {request.time} does not apply inside allocation {allocation.job_id}; {limit}")
    if request.partition and request.partition != allocation.partition:
        notes.append(
            f"--partition {request.partition} does not apply inside allocation {allocation.job_id} "
            f"(partition {allocation.partition})"
        )
    return tuple(notes)
