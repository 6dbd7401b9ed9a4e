"""Laws of the nodes that a job is for: what a group can take is not refused, and a job gets no nodes of other kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.cluster.groups import kind, usual
from ctrain_runtime.cluster.model import Cluster, NodeGroup, Partition
from ctrain_runtime.errors import ResourceError
from ctrain_runtime.plan import sizing
from ctrain_runtime.plan.size import JobFit, SizeRequest
from ctrain_runtime.site.model import Site
from samples.plans import a_manifest

SITE = Site(name="neuron", scheduler="slurm")
IMAGES = (None, a_manifest(), a_manifest(software={"torch": "2.13.0"}))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[NodeGroup, ...]:
    count = draw(st.integers(1, 5))
    return tuple(draw(groups(number)) for number in range(count))


@st.composite
def groups(draw: st.DrawFn, number: int) -> NodeGroup:
    usable, away = draw(st.integers(0, 4)), draw(st.lists(st.sampled_from(["down", "drained"]), max_size=3))
    gpus = draw(st.sampled_from([0, 0, 2, 4, 8]))
    return NodeGroup(
        cpus=draw(st.sampled_from([8, 16, 64])),
        gpus=gpus,
        gpu_type=draw(st.sampled_from(["", "v100", "a100"])) if gpus else "",
        memory=draw(st.sampled_from([0, 64_000, 512_000])),
        arch=draw(st.sampled_from(["x86_64", "x86_64", "aarch64"])),
        features=draw(st.frozensets(st.sampled_from(["v100", "a100", "ib", "rack1"]), max_size=2)),
        names=tuple(f"n{number}x{node}" for node in range(usable + len(away))),
        nodes=usable,
        idle=draw(st.integers(0, usable)),
        unavailable=tuple(away),
    )


requests = st.fixed_dictionaries(
    {
        "nodes": st.integers(1, 8),
        "gpus_per_node": st.sampled_from(["auto", "auto", 0, 1, 4, 8]),
        "ranks_per_node": st.sampled_from(["auto", "auto", 1, 10, 64]),
    }
)


def is_able(one: NodeGroup, request: dict[str, Any]) -> bool:
    gpus, ranks = request["gpus_per_node"], request["ranks_per_node"]
    needed = max(1, one.gpus if gpus == "auto" else gpus) if ranks == "auto" else ranks
    return one.gpus >= (0 if gpus == "auto" else gpus) and one.cpus >= needed


def fit(found: tuple[NodeGroup, ...], request: dict[str, Any], **changes: Any) -> JobFit:
    part = usual(Partition("gpu", True, nodes=0, cpus=0, gpus=0), found)
    cluster = Cluster((part,), **{"can_select": True, "memory_is_consumable": True, **changes})
    return sizing.fit(SizeRequest(**request), cluster, SITE)


@given(clusters(), requests, st.booleans())
def test_a_request_that_a_group_satisfies_is_not_refused(
    found: tuple[NodeGroup, ...], request: dict[str, Any], consumable: bool
) -> None:
    existing = sum(one.existing for one in found)
    enough = any(is_able(one, request) and one.existing >= request["nodes"] for one in found)
    try:
        fitted = fit(found, request, memory_is_consumable=consumable)
    except ResourceError as error:
        assert not enough, error
        return
    assert fitted.chosen
    assert request["nodes"] <= fitted.chosen.existing <= existing
    assert fitted.chosen.nodes <= sum(one.nodes for one in found)
    for one in fitted.chosen.groups:
        assert one.gpus >= fitted.size.gpus_per_node
        assert one.cpus >= fitted.size.ranks_per_node * fitted.size.cpus_per_rank
        assert not one.memory or fitted.size.memory is None or one.memory >= fitted.size.memory


@given(clusters(), requests, st.sampled_from(IMAGES))
def test_a_job_gets_nodes_of_one_kind(found: tuple[NodeGroup, ...], request: dict[str, Any], image: Any) -> None:
    try:
        fitted = fit(found, {**request, "image": image})
    except ResourceError:
        return
    assert fitted.chosen
    uses_gpus, own = fitted.size.gpus_per_node > 0, fitted.constraint
    got = [
        one
        for one in found
        if one.gpus >= fitted.size.gpus_per_node
        and one.cpus >= fitted.size.ranks_per_node * fitted.size.cpus_per_rank
        and (fitted.size.memory is None or not one.memory or one.memory >= fitted.size.memory)
        and (own is None or one.features.issuperset(own.features))
        and (own is None or own.gpu_type in ("", one.gpu_type))
        and (own is None or not set(one.names) & set(own.excluded) or not one.names)
    ]
    kinds = {kind(one, uses_gpus=uses_gpus) for one in fitted.chosen.groups}
    enough = any(
        sum(one.existing for one in fitted.chosen.groups if kind(one, uses_gpus=uses_gpus) == each) >= fitted.size.nodes
        for each in kinds
    )
    assert len(kinds) == 1 or not enough, "of several types where one is enough"
    assert {kind(one, uses_gpus=uses_gpus) for one in got if one.existing} <= kinds
    assert sum(one.existing for one in got) >= fitted.chosen.existing >= fitted.size.nodes


@given(clusters(), requests, st.data())
def test_what_is_idle_changes_nothing(
    found: tuple[NodeGroup, ...], request: dict[str, Any], data: st.DataObject
) -> None:
    busy = tuple(replace(one, idle=data.draw(st.integers(0, one.nodes))) for one in found)
    sizes: list[object] = []
    for each in (found, busy):
        try:
            fitted = fit(each, request)
            sizes.append(
                (fitted.size.gpus_per_node, fitted.size.ranks_per_node, fitted.size.cpus_per_rank, fitted.constraint)
            )
        except ResourceError as error:
            sizes.append(error.message)
    assert sizes[0] == sizes[1]
