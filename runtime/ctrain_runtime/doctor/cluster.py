"""Checks the scheduler: whether it answers, what is free, and its clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from ctrain_runtime import schedulers
from ctrain_runtime.base.text import pluralize
from ctrain_runtime.cluster.groups import kinds
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.doctor import Finding, check_clock
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.run.targets import find_cluster
from ctrain_runtime.site.model import Site


def check_cluster(site: Site) -> tuple[Optional[Cluster], list[Finding]]:
    """The cluster, None if it does not answer, and what is wrong with it."""
    try:
        cluster, _ = find_cluster(schedulers.get(site.scheduler), site)
    except CtrainError as error:
        return None, [Finding("scheduler", "fail", error.message, error.hint)]
    return cluster, list(_check(site, cluster))


def _check(site: Site, cluster: Cluster) -> Iterator[Finding]:
    of_kinds = {part.name: kinds(part) for part in cluster.partitions}
    nodes = {name: sum(kind.nodes for kind in kinds_of_nodes) for name, kinds_of_nodes in of_kinds.items()}
    idle = {name: sum(kind.idle or 0 for kind in kinds_of_nodes) for name, kinds_of_nodes in of_kinds.items()}
    usable = [name for name in nodes if nodes[name]]
    if (cluster.partitions or cluster.closed) and not usable:
        closed = "".join(f"; {part.name} is {part.closed}" for part in cluster.closed)
        text = f"all nodes of {pluralize(len(cluster.partitions), 'open partition')} are down or drained{closed}"
        yield Finding("scheduler", "fail", f"{site.scheduler}: {text}", "Wait, or ask the administrators")
    else:
        parts = ", ".join(f"{name} ({idle[name]} of {nodes[name]} nodes idle)" for name in usable)
        yield Finding("scheduler", "ok", f"{site.scheduler}: {parts}".rstrip(": "))
    if cluster.clock_skew is not None:
        yield check_clock(f"the controller of {site.scheduler}", cluster.clock_skew)
