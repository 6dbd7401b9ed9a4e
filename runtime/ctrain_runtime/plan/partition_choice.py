"""Chooses the partition of a job that names none, from what the cluster is now. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from ctrain_runtime import time_limit
from ctrain_runtime.facts import Cluster, Partition
from ctrain_runtime.job import Count
from ctrain_runtime.manifest import Manifest
from ctrain_runtime.plan import admission
from ctrain_runtime.plan.size import SizeRequest, resolve_count


def choose_partition(request: SizeRequest, cluster: Cluster) -> tuple[Partition, str]:
    """A partition that fits, and the reason in one line ("" if there is only one partition).

    In this order: one whose jobs are not preempted, that allows all of the time, that has enough idle nodes, the
    cluster's default, the most idle nodes, the cluster's own order. If none fits it is the default: what is wrong with
    the request is then for the checks of its size to say. `cluster` must have partitions.
    """
    obstacles = {part.name: _obstacle(request, cluster, part) for part in cluster.partitions}
    default = next((part for part in cluster.partitions if part.default), cluster.partitions[0])
    fitting = [part for part in cluster.partitions if not obstacles[part.name]]
    chosen = min(fitting, key=_preference(request), default=default)
    if len(cluster.partitions) == 1 or not fitting:
        return chosen, ""
    instead = "the cluster's default" if chosen.default else ""
    if default.default and not chosen.default:
        instead = f"instead of the default {default.name} ({obstacles[default.name] or _drawback(request, default)})"
    return chosen, f"partition {chosen.name} chosen: {', '.join(filter(None, (_idle(chosen), instead)))}"


def _obstacle(request: SizeRequest, cluster: Cluster, part: Partition) -> str:
    """The first reason why a job cannot run in a partition; "" if it can."""
    nodes = resolve_count("--nodes", request.nodes, 1)
    gpus, ranks = request.gpus_per_node, request.ranks_per_node
    account, qos = request.account or cluster.account, request.qos or cluster.qos
    limit = time_limit.parse_limit(request.time)
    checks = (
        (not part.accounts.admits(account), f"closed to account {account}"),
        (not part.qos.admits(qos), f"closed to QOS {qos}"),
        (nodes > part.nodes, f"{part.nodes} usable nodes"),
        (part.max_nodes is not None and nodes > part.max_nodes, f"at most {part.max_nodes} nodes per job"),
        (isinstance(gpus, int) and gpus > part.gpus, f"{part.gpus} GPUs per node"),
        (isinstance(ranks, int) and ranks > part.cpus, f"{part.cpus} CPUs per node"),
        (request.time_is_explicit and _is_too_long(limit, part), f"time limit {_limit(part)}"),
        *_image_checks(request.image, part, gpus),
    )
    return next((text for failed, text in checks if failed), "")


def _image_checks(image: Optional[Manifest], part: Partition, gpus: Count) -> tuple[tuple[bool, str], ...]:
    if image is None:
        return ()
    refusal = admission.refusal(image, admission.nodes_of(part, use_gpus=gpus != 0))
    return (gpus != 0 and "cuda" in image.software and not part.gpus, "no GPUs"), (bool(refusal), refusal)


def _preference(request: SizeRequest) -> Callable[[Partition], tuple[bool, bool, bool, bool, int]]:
    nodes, limit = resolve_count("--nodes", request.nodes, 1), time_limit.parse_limit(request.time)

    def rank(part: Partition) -> tuple[bool, bool, bool, bool, int]:
        idle = part.idle or 0
        return part.preemptible, _is_too_long(limit, part), idle < nodes, not part.default, -idle

    return rank


def _drawback(request: SizeRequest, part: Partition) -> str:
    """Why a partition that fits is not preferred."""
    if part.preemptible:
        return "preemptible"
    if _is_too_long(time_limit.parse_limit(request.time), part):
        return f"time limit {_limit(part)}"
    return _idle(part) or "idle nodes unknown"


def _is_too_long(limit: Optional[int], part: Partition) -> bool:
    return part.time_limit is not None and (limit is None or limit > part.time_limit)


def _limit(part: Partition) -> str:
    return "none" if part.time_limit is None else time_limit.format_limit(part.time_limit)


def _idle(part: Partition) -> str:
    return "" if part.idle is None else f"{part.idle} of {part.nodes} nodes idle"
