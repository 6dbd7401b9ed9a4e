"""Chooses the nodes of a partition that a job is sized for, and what it asks for so as to get no others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from ctrain_runtime import gpus
from ctrain_runtime.cluster import groups
from ctrain_runtime.cluster.model import MAINTENANCE, RESERVED, Allocation, Cluster, Constraint, NodeGroup, Partition
from ctrain_runtime.plan import admission
from ctrain_runtime.plan.size import JobSize, SizeRequest, resolve_count

INSEPARABLE = ", and nothing that a job can ask for tells these from others that fit"


def sort_features(request: SizeRequest, cluster: Cluster) -> SizeRequest:
    """The request, whose features are those that nodes are known to have: others may be amounts, or not be shown."""
    shown = {
        feature
        for part in cluster.partitions
        for one in (*part.groups, *part.others)
        for feature in one.features.intersection(request.features or ())
    }
    unknown = tuple(feature for feature in request.features or () if feature not in shown)
    known = tuple(feature for feature in request.features or () if feature in shown)
    return replace(request, features=request.features and known, other_features=unknown)


def lacks(request: SizeRequest, part: Partition) -> str:
    """What a narrowed partition has no nodes with, of what the user's own options ask for; "" if it has, or may."""
    if not part.groups or any(_is_asked_for(one, request) for one in part.groups):
        return ""
    asked = (*(request.features or ()), *filter(None, [request.gpu_type]))
    return f"no nodes with {', '.join(asked)}" if asked else "all nodes excluded"


def narrow(request: SizeRequest, part: Partition, *, by_memory: bool) -> Partition:
    """The partition as far as the nodes go that the job is sized for; where none can take it, those that come nearest:
    then its size is refused. `by_memory`: the job asks for memory."""
    everything = tuple(_free(one, request) for one in (*part.groups, *part.others))
    if not everything:
        return part
    able = [one for one in everything if _is_large_enough(one, request) and _is_admitted(one, request, part)]
    chosen = _choose(able or _nearest(everything, request), request, by_memory=by_memory or request.memory > 0)
    narrowed = groups.restrict(part, chosen, everything)
    if set(narrowed.groups) == set(part.groups):
        return replace(narrowed, gpu_type=part.gpu_type, arch=part.arch)
    exact = gpus.more_exact(narrowed.gpu_type, part.gpu_type) if narrowed.gpu_type else ""
    return replace(narrowed, gpu_type=exact, arch=narrowed.arch or part.arch)


def _choose(able: Sequence[NodeGroup], request: SizeRequest, *, by_memory: bool) -> Sequence[NodeGroup]:
    """Of groups that can take a job those that it is sized for: of the kind that the user names nodes of, if any."""
    nodes, asked = resolve_count("--nodes", request.nodes, 1), request.gpus_per_node
    kinds = {groups.kind(one, uses_gpus=asked != 0) for one in able if set(request.hosts) & set(one.names)}
    named = [one for one in able if groups.kind(one, uses_gpus=asked != 0) in kinds]
    if named and sum(one.existing for one in named) >= nodes:
        return named
    prefers_gpus = request.image is None or not admission.is_for_cpus(request.image)
    return groups.choose(able, nodes, asked, prefers_gpus=prefers_gpus, by_memory=by_memory)


def of_allocation(part: Partition, allocation: Allocation) -> Partition:
    """The partition as far as the nodes of an allocation can be its."""
    everything = (*part.groups, *part.others)
    able = [one for one in everything if one.cpus >= allocation.cpus and one.gpus >= (allocation.gpus or 0)]
    return groups.restrict(part, able, everything) if part.others else part


def _free(one: NodeGroup, request: SizeRequest) -> NodeGroup:
    """A group as a job sees it: the nodes of a reservation can be used by one that names it."""
    if not (request.in_reservation and one.unavailable):
        return one
    rest = tuple(reason for reason in one.unavailable if reason not in (MAINTENANCE, RESERVED))
    return replace(one, nodes=one.existing - len(rest), unavailable=rest)


def _is_large_enough(one: NodeGroup, request: SizeRequest) -> bool:
    asked, ranks = request.gpus_per_node, request.ranks_per_node
    return (
        (isinstance(asked, str) or one.gpus >= asked)
        and (isinstance(ranks, str) or one.cpus >= ranks)
        and (not one.memory or one.memory >= request.memory)
    )


def _is_admitted(one: NodeGroup, request: SizeRequest, part: Partition) -> bool:
    return _is_asked_for(one, request) and not _is_refused_by_image(one, request, part)


def _is_asked_for(one: NodeGroup, request: SizeRequest) -> bool:
    """Whether the user's own options let a job have nodes of a group."""
    return (
        one.features.issuperset(request.features or ())
        and request.gpu_type in ("", one.gpu_type)
        and not (one.names and set(one.names) <= set(request.excluded))
    )


def _is_refused_by_image(one: NodeGroup, request: SizeRequest, part: Partition) -> bool:
    image, uses_gpus = request.image, request.gpus_per_node != 0
    if image is None:
        return False
    alone = replace(part, gpus=one.gpus, gpu_type=groups.gpu_type(one), arch=one.arch)
    nodes = admission.nodes_of(alone, use_gpus=uses_gpus)
    return (uses_gpus and "cuda" in image.software and not one.gpus) or bool(admission.refusal(image, nodes))


def _nearest(everything: Sequence[NodeGroup], request: SizeRequest) -> list[NodeGroup]:
    """Of groups that cannot take a job, those of which least is missing."""

    def rank(one: NodeGroup) -> tuple[bool, int, int]:
        asked, ranks = request.gpus_per_node, request.ranks_per_node
        enough = (most if isinstance(most, int) else 0 for most in (asked, ranks))
        return _is_asked_for(one, request), min(one.gpus, next(enough)), min(one.cpus, next(enough))

    best = max(map(rank, everything))
    return [one for one in everything if rank(one) == best]


def keep_apart(
    request: SizeRequest, cluster: Cluster, part: Partition, size: JobSize
) -> tuple[Optional[Constraint], tuple[str, ...]]:
    """What a job asks for besides its size so as to get the nodes of a narrowed partition alone (None: nothing), and
    notes on a partition whose nodes differ."""
    everything = (*part.groups, *part.others)
    own, others = (groups.describe(some, everything) for some in (part.groups, part.others))
    types = sorted({groups.gpu_type(one) or "unnamed" for one in part.groups} if size.gpus_per_node else ())
    several = f"partition {part.name}: the GPUs of the job may be of several types: {', '.join(types)}"
    mixed = (several,) if len(types) > 1 else ()
    if not part.others:
        return None, mixed
    constraint, how = _constraint(request, cluster, part, size)
    return constraint, (f"partition {part.name}: sized for its {own}{how}; it also has {others}", *mixed)


def _constraint(
    request: SizeRequest, cluster: Cluster, part: Partition, size: JobSize
) -> tuple[Optional[Constraint], str]:
    """The constraint, and how a note says it: by a feature that names the type of the GPUs, by that type, by any other
    feature that the nodes share and no unwanted one has, or by the names of those."""
    unwanted = _unwanted(request, part, size)
    if not unwanted or request.hosts:
        return None, ""
    features: list[str] = []
    if request.features is not None:
        shared = frozenset.intersection(*(one.features for one in part.groups))
        features = sorted(shared.difference(*(one.features for one in unwanted)))
    types = {one.gpu_type for one in part.groups}
    own = groups.gpu_type(part.groups[0]) if size.gpus_per_node else ""
    name = next((one for one in features if own and _names_type(one, own)), "")
    feature = name or next(iter(features), "")
    has_type = bool(own) and len(types) == 1 and "" not in types and not types & {one.gpu_type for one in unwanted}
    if has_type and not name and cluster.can_select:
        return Constraint(gpu_type=types.pop()), ", asked for by type"
    if feature:
        given = (*(request.features or ()), *request.other_features)
        return Constraint((*given, feature)), f", asked for by feature {feature}"
    if cluster.can_select:
        names = (name for one in unwanted for name in one.names)
        return Constraint(excluded=(*request.excluded, *names)), ", asked for by leaving out others"
    return None, INSEPARABLE


def _unwanted(request: SizeRequest, part: Partition, size: JobSize) -> list[NodeGroup]:
    """The other groups whose nodes have what a job asks for, and that it must not get: of another kind, or none for its
    image."""
    kinds = {groups.kind(one, uses_gpus=size.gpus_per_node > 0) for one in part.groups}

    def is_possible(one: NodeGroup) -> bool:
        return (
            _is_asked_for(one, request)
            and one.gpus >= size.gpus_per_node
            and one.cpus >= size.ranks_per_node * size.cpus_per_rank
            and (size.memory is None or not one.memory or one.memory >= size.memory)
        )

    return [
        one
        for one in part.others
        if is_possible(one)
        and (
            groups.kind(one, uses_gpus=size.gpus_per_node > 0) not in kinds or _is_refused_by_image(one, request, part)
        )
    ]


def _names_type(feature: str, gpu_type: str) -> bool:
    """Whether a feature, as in a100 or gpu_type=a100, means a type of GPUs."""
    model = gpus.identify(gpu_type).model
    is_same = feature.rpartition("=")[2].lower() == gpu_type.lower()
    return is_same or (bool(model) and gpus.identify(feature).model == model)
