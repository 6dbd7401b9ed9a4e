"""Chooses the partition of a job that names none, from what the cluster is now. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from ctrain_runtime.base import time_limit
from ctrain_runtime.base.text import pluralize
from ctrain_runtime.cluster.model import Cluster, Limits, Partition
from ctrain_runtime.job import Count
from ctrain_runtime.plan import admission
from ctrain_runtime.plan.node_choice import lacks
from ctrain_runtime.plan.size import SizeRequest, resolve_count
from ctrain_runtime.store.manifest import Manifest

Checks = tuple[tuple[bool, str], ...]  # whether each applies, and its text


def choose_partition(
    request: SizeRequest, cluster: Cluster, order: Sequence[str] = ()
) -> tuple[Partition, tuple[str, ...]]:
    """A partition that fits, and notes: the reason (none if there is only one partition), and what else is idle.

    What is idle must not change what a command does. So the partition is the first of a lasting order: one whose jobs
    are not preempted, that allows all of the time, of the site's `order`, the cluster's default, the cluster's order.
    Idleness decides only among those in which the run has the same shape. If none fits it is the default: what is wrong
    with the request is then for the checks of its size to say. `cluster` must have partitions.
    """
    everything, default = (*cluster.partitions, *cluster.closed), _default(cluster)
    obstacles = {part.name: _first(_obstacles(request, cluster, part)) for part in everything}
    fitting = [part for part in everything if not obstacles[part.name]]
    if len(everything) == 1 or not fitting:
        return cluster.partitions[0] if default.closed else default, ()

    def rank(part: Partition) -> tuple[list[bool], int, bool]:
        place = order.index(part.name) if part.name in order else len(order)
        return [applies for applies, _ in _drawbacks(request, part)], place, not part.default

    preferred = min(fitting, key=rank)
    idle = [part for part in fitting if rank(part)[0] == rank(preferred)[0] and not _is_busy(request, part)]
    alike = [part for part in idle if _have_one_shape(request, cluster, part, preferred)]
    is_busy = preferred.idle is not None and _is_busy(request, preferred)
    chosen = max(alike, key=lambda part: part.idle or 0) if is_busy and alike else preferred
    if chosen is not preferred:
        why = f"instead of {preferred.name} ({_idle(preferred)}), of the same shape"
    else:
        problems = {part.name: obstacles[part.name] or _first(_drawbacks(request, part)) for part in everything}
        why = _why_first(chosen, default, problems, order)
    state = "" if chosen.idle is None else f"{_idle(chosen)}, "
    others = [_describe_idle(request, part) for part in idle] if is_busy and chosen is preferred else []
    elsewhere = f"other partitions are idle, where the run would differ: {'; '.join(others)}" if others else ""
    return chosen, tuple(filter(None, (f"partition {chosen.name} chosen: {state}{why}", elsewhere)))


def others_that_take(request: SizeRequest, cluster: Cluster, refused: Partition) -> tuple[str, ...]:
    """The names of partitions with nodes of the same kind that would take what one has refused."""
    return tuple(
        part.name
        for part in cluster.partitions
        if part.name != refused.name
        and bool(part.gpus) == bool(refused.gpus)
        and part.arch in ("", refused.arch)
        and not _first(_obstacles(request, cluster, part))
    )


def _why_first(chosen: Partition, default: Partition, problems: Mapping[str, str], order: Sequence[str]) -> str:
    """Why a partition is the first of the lasting order; `problems`: why each of the others is not."""
    preferred = order[: order.index(chosen.name)] if chosen.name in order else order
    skipped = next((name for name in preferred if problems.get(name)), "")
    instead = f", instead of {skipped} ({problems[skipped]})" if skipped else ""
    if chosen.default:
        return f"the cluster's default{instead}"
    if chosen.name in order:
        return f"the first of the site's partition_order that fits{instead}"
    problem = problems[default.name]
    return f"instead of the default {default.name} ({problem})" if default.default else f"the first that fits{instead}"


def _default(cluster: Cluster) -> Partition:
    everything = (*cluster.partitions, *cluster.closed)
    return next((part for part in everything if part.default), everything[0])


def _is_busy(request: SizeRequest, part: Partition) -> bool:
    return (part.idle or 0) < resolve_count("--nodes", request.nodes, 1)


def _shape(request: SizeRequest, part: Partition) -> tuple[int, int]:
    """GPUs and ranks per node."""
    gpus = resolve_count("--gpus-per-node", request.gpus_per_node, part.gpus, least=0)
    return gpus, resolve_count("--ranks-per-node", request.ranks_per_node, gpus or 1)


def _have_one_shape(request: SizeRequest, cluster: Cluster, part: Partition, other: Partition) -> bool:
    """Whether a run has as many ranks and GPUs in both partitions, and GPUs that are known to be of one type."""
    gpus, _ = shape = _shape(request, part)
    members = [cluster.members.get(each.name) for each in (part, other)]
    same_type = part.gpu_type == other.gpu_type != "" or (bool(members[0]) and members[0] == members[1])
    return shape == _shape(request, other) and (same_type or not gpus)


def _describe_idle(request: SizeRequest, part: Partition) -> str:
    """An idle partition, and what a run would have there."""
    gpus, ranks = _shape(request, part)
    with_gpus = f"{pluralize(gpus, 'GPU')}{f' ({part.gpu_type})' if gpus and part.gpu_type else ''}"
    return f"{part.name}: {pluralize(ranks, 'rank')} and {with_gpus} per node"


def hosts_elsewhere(request: SizeRequest, cluster: Cluster, name: str) -> list[str]:
    """The requested nodes that a partition is known not to have."""
    return [host for host in request.hosts if host not in cluster.members.get(name, request.hosts)]


def limit(request: SizeRequest, cluster: Cluster) -> Cluster:
    """The cluster with the limits of QOS, accounts and ranges of nodes that hold for the request's jobs.

    Of the partition's QOS, the job's and the account, the first that sets a limit counts
    (slurm.schedmd.com/resource_limits.html, hierarchy).
    """
    job = f"QOS {request.qos or cluster.qos}"
    account = f"account {request.account or cluster.account}"

    def limited(part: Partition) -> Partition:
        names = [f"QOS {part.own_qos}", job, account]
        if cluster.limits.get(job, Limits()).overrides:
            names[:2] = reversed(names[:2])
        changes: dict[str, Any] = {}
        by: dict[str, None] = {}
        for what in ("max_nodes", "max_gpus", "time_limit"):
            values = ((getattr(cluster.limits[name], what), name) for name in names if name in cluster.limits)
            most, who = next(((most, who) for most, who in values if most is not None), (None, ""))
            own = getattr(part, what)
            if most is not None and (own is None or most < own):
                changes[what], by[who] = most, None
        return replace(part, **changes, limited_by=", ".join(filter(None, (part.limited_by, *by))))

    nodes = resolve_count("--nodes", request.nodes, 1)
    in_range = (_in_range(part, nodes) for part in cluster.partitions)
    return replace(cluster, partitions=tuple(map(limited, in_range)))


def _in_range(part: Partition, nodes: int) -> Partition:
    """The partition with the limit of time of jobs of that many nodes. The widest counts where several queues take
    them; where none does, the next larger number is the least."""
    ranges = [one for one in part.by_nodes if one.holds(nodes)]
    if not part.by_nodes or nodes > max((one.most or nodes) for one in part.by_nodes):
        return part
    if not ranges:
        return replace(part, min_nodes=min(one.least for one in part.by_nodes if one.least > nodes))
    widest = max(ranges, key=lambda one: (one.minutes is None, one.minutes or 0))
    if widest.minutes is None or (part.time_limit is not None and part.time_limit <= widest.minutes):
        return part
    return replace(part, time_limit=widest.minutes, limited_by=f"jobs of {widest}")


def _first(checks: Checks) -> str:
    return next((text for applies, text in checks if applies), "")


def _obstacles(request: SizeRequest, cluster: Cluster, part: Partition) -> Checks:
    """Why a job cannot run in a partition."""
    nodes = resolve_count("--nodes", request.nodes, 1)
    gpus, ranks = request.gpus_per_node, request.ranks_per_node
    account, qos = request.account or cluster.account, request.qos or cluster.qos
    elsewhere, lacking = hosts_elsewhere(request, cluster, part.name), lacks(request, part)
    return (
        (bool(part.closed), part.closed),
        (bool(elsewhere), f"without node {next(iter(elsewhere), '')}"),
        (bool(lacking), lacking),
        (not part.accounts.admits(account), f"closed to account {account}"),
        (not part.qos.admits(qos), f"closed to QOS {qos}"),
        (nodes > part.existing, f"{part.nodes} usable nodes"),
        (nodes < part.min_nodes, f"at least {part.min_nodes} nodes per job"),
        (part.max_nodes is not None and nodes > part.max_nodes, f"at most {part.max_nodes} nodes per job"),
        (
            part.max_gpus is not None and isinstance(gpus, int) and nodes * gpus > part.max_gpus,
            f"at most {part.max_gpus} GPUs per job",
        ),
        (isinstance(gpus, int) and gpus > part.gpus, f"{part.gpus} GPUs per node"),
        (isinstance(ranks, int) and ranks > part.cpus, f"{part.cpus} CPUs per node"),
        *(_time_checks(request, part) if request.time_is_explicit else ()),
        *_image_checks(request.image, part, gpus, _default(cluster).arch),
    )


def _drawbacks(request: SizeRequest, part: Partition) -> Checks:
    """Why another partition would be better, the worst reason first."""
    waits = resolve_count("--nodes", request.nodes, 1) > part.nodes
    return ((waits, f"{part.nodes} usable nodes"), (part.preemptible, "preemptible"), *_time_checks(request, part))


def _time_checks(request: SizeRequest, part: Partition) -> Checks:
    if part.time_limit is None:
        return ((False, ""),)
    limit = time_limit.parse_limit(request.time)
    return ((limit is None or limit > part.time_limit, f"time limit {time_limit.format_limit(part.time_limit)}"),)


def _image_checks(image: Optional[Manifest], part: Partition, gpus: Count, usual_arch: str) -> Checks:
    """An image of an unknown architecture (not pulled yet, a sandbox) is taken for one of the `usual_arch`."""
    if image is None:
        return ()
    is_unusual = not image.arch and usual_arch != "" and part.arch not in ("", usual_arch)
    refusal = admission.refusal(image, admission.nodes_of(part, use_gpus=gpus != 0))
    return (
        (gpus != 0 and "cuda" in image.software and not part.gpus, "no GPUs"),
        (bool(refusal), refusal),
        (is_unusual, f"{part.arch}, and the image's architecture is unknown"),
    )


def _idle(part: Partition) -> str:
    return "idle nodes unknown" if part.idle is None else f"{part.idle} of {part.nodes} nodes idle"
