"""The cluster that a run is planned for: asked here, or as the site's file describes it."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from dataclasses import replace
from typing import Callable, Union

from ctrain_runtime import gpus
from ctrain_runtime.base import time_limit
from ctrain_runtime.base.time_limit import NodeRange
from ctrain_runtime.cluster import machine
from ctrain_runtime.cluster.groups import change_nodes
from ctrain_runtime.cluster.model import Cluster, Limits, NodeGroup, Partition
from ctrain_runtime.errors import ConfigError, SchedulerError, UsageError
from ctrain_runtime.plan import admission
from ctrain_runtime.plan.admission import NodeFacts
from ctrain_runtime.plan.size import JobFit
from ctrain_runtime.schedulers.protocol import Scheduler
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import others_detected

Notes = tuple[str, ...]


def find_cluster(scheduler: Scheduler, site: Site, *, dry_run: bool = False) -> tuple[Cluster, Notes]:
    """The cluster as it is now; what its scheduler does not tell is from the site's file.

    Where a dry run cannot ask the scheduler, all of it is, which a note says. Raises SchedulerError, or ConfigError for
    a wrong time limit in the site's file.
    """
    return complete(functools.partial(scheduler.facts, site), site, dry_run=dry_run)


def complete(answer: Callable[[], Cluster], site: Site, *, dry_run: bool = False) -> tuple[Cluster, Notes]:
    """The same of what a scheduler answers, or raises as SchedulerError."""
    try:
        cluster = answer()
    except SchedulerError as error:
        others = " or ".join(f"--site {name}" for name in others_detected(site))
        other = f"; another scheduler is installed here, too: {others}" if others else ""
        if not dry_run:
            raise SchedulerError(error.message, f"{error.hint}{other}") from error
        note = f"partitions are those of the file of site {site.name}: {error.message}{other}"
        return describe_cluster(site), (note,)
    described = {part.name: part for part in describe_cluster(site).partitions}
    threads = site.job_threads_per_core or 0
    parts = (limit_threads(_complete(site, part, described), threads) for part in cluster.partitions)
    return replace(cluster, partitions=tuple(parts)), ()


def describe_cluster(site: Site) -> Cluster:
    """The cluster as the site's file describes it. Raises ConfigError for a wrong time limit."""
    partitions = tuple(_describe(site, name) for name in site.partitions)
    limits = {
        f"QOS {name}": Limits(qos.max_nodes, time_limit=_ranges(site, f"qos.{name}", qos.time_limit)[0].minutes)
        for name, qos in site.qos.items()
    }
    return Cluster(partitions, mpi=site.mpi, qos=site.default_qos, limits=limits)


def _ranges(site: Site, key: str, limits: Union[str, Mapping[str, str]]) -> tuple[NodeRange, ...]:
    try:
        return time_limit.parse_ranges(limits)
    except UsageError as error:
        raise ConfigError(f"site {site.name}: {key}: {error.message}", error.hint) from error


def _describe(site: Site, name: str) -> Partition:
    part = site.partitions[name]
    key = f"partitions.{name}"
    ranges = _ranges(site, key, part.time_limit)
    if part.max_nodes is not None and part.max_nodes < part.min_nodes:
        problem = f"min_nodes is {part.min_nodes}, max_nodes {part.max_nodes}: no job fits"
        raise ConfigError(f"site {site.name}: {key}: {problem}", "Correct one of them, or leave it out")
    by_nodes = ranges if isinstance(part.time_limit, dict) else ()
    return Partition(
        name,
        default=name == site.partition,
        nodes=part.nodes,
        cpus=part.cpus,
        gpus=part.gpus,
        gpu_type=part.gpu_type,
        arch=part.arch,
        driver=part.driver,
        time_limit=None if by_nodes else ranges[0].minutes,
        threads_per_core=part.threads_per_core,
        min_nodes=max(part.min_nodes, by_nodes[0].least if by_nodes else 1),
        max_nodes=part.max_nodes or (by_nodes[-1].most if by_nodes else None),
        by_nodes=by_nodes,
        max_running=part.max_running,
        max_submitted=part.max_submitted,
        min_time=_ranges(site, key, part.min_time)[0].minutes or 0 if part.min_time else 0,
    )


def _complete(site: Site, part: Partition, described: dict[str, Partition]) -> Partition:
    """A partition with what the scheduler does not tell; GPUs that it does not know are those of the file, too."""
    known = described.get(part.name, part)
    gpu_type = gpus.more_exact(part.gpu_type, known.gpu_type)
    if "gpus" in site.not_requested:
        part = change_nodes(part, lambda one: replace(one, gpus=known.gpus))
    return replace(
        part,
        gpu_type=gpu_type,
        arch=part.arch or known.arch,
        driver=known.driver,
        max_running=known.max_running,
        max_submitted=known.max_submitted,
        min_time=part.min_time or known.min_time,
        by_nodes=part.by_nodes or known.by_nodes,
    )


def limit_threads(part: Partition, threads: int) -> Partition:
    """The partition as jobs see it that get only some of each core's hardware threads (--threads-per-core)."""

    def change(one: NodeGroup) -> NodeGroup:
        if not 0 < threads < one.threads_per_core:
            return one
        return replace(one, cpus=one.cpus // one.threads_per_core * threads, threads_per_core=threads)

    return change_nodes(part, change)


def find_nodes(fit: JobFit) -> NodeFacts:
    """What is known of the nodes of a run: those of its partition, or this machine."""
    here, use_gpus = platform.machine(), fit.size.gpus_per_node > 0
    if fit.chosen:
        nodes = admission.nodes_of(fit.chosen, use_gpus=use_gpus)
        return replace(nodes, arch=nodes.arch or here)
    models = machine.gpu_models() if use_gpus else ()
    return NodeFacts("this machine", here, models, machine.driver_version(), machine.cpu_instructions())
