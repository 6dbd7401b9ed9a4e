from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from ctrain_runtime.cluster.groups import usual
from ctrain_runtime.cluster.model import Allocation, Cluster, Constraint, NodeGroup, Partition
from ctrain_runtime.errors import ResourceError
from ctrain_runtime.plan import sizing
from ctrain_runtime.plan.node_choice import of_allocation
from ctrain_runtime.plan.size import JobFit, SizeRequest
from ctrain_runtime.site.model import Site
from ctrain_runtime.store.manifest import Requires
from samples.plans import a_manifest

SITE = Site(name="neuron", scheduler="slurm")
V100 = NodeGroup(40, 4, "v100", memory=190_000, arch="x86_64", names=("v1", "v2"), nodes=20, idle=3)
A100 = NodeGroup(128, 8, "a100", memory=1_000_000, arch="x86_64", names=("a1", "a2"), nodes=2, idle=1)
ARM = replace(A100, arch="aarch64", gpu_type="v100")
CPU = NodeGroup(64, memory=190_000, arch="x86_64", names=("c1",), nodes=1, idle=1)
MIXED = (V100, A100, CPU)
FOR_A100 = a_manifest(requires=Requires(arch=("8.0", "9.0")))


def cluster(*groups: NodeGroup, can_select: bool = True, **changes: Any) -> Cluster:
    part = usual(Partition("gpu", True, nodes=0, cpus=0, gpus=0), groups)
    return Cluster((part,), can_select=can_select, **changes)


def fit(*groups: NodeGroup, on: Any = None, **request: Any) -> JobFit:
    return sizing.fit(SizeRequest(**request), on or cluster(*(groups or MIXED)), SITE)


def refusal(*groups: NodeGroup, **request: Any) -> str:
    with pytest.raises(ResourceError) as caught:
        fit(*groups, **request)
    return str(caught.value)


def featured(one: NodeGroup, *features: str, **changes: Any) -> NodeGroup:
    return replace(one, features=frozenset(features), **changes)


@pytest.mark.parametrize(
    ("request_", "names", "size"),
    [
        ({}, "v1", (4, 4, 10)),
        ({"gpus_per_node": 2}, "v1", (2, 2, 10)),
        ({"gpus_per_node": 8}, "a1", (8, 8, 16)),
        ({"gpus_per_node": 0}, "c1", (0, 1, 64)),
        ({"ranks_per_node": 100}, "a1", (8, 100, 1)),
        ({"memory": 500_000}, "a1", (8, 8, 16)),
        ({"gpu_type": "a100"}, "a1", (8, 8, 16)),
        ({"gpu_type": "a100", "gpus_per_node": 4}, "a1", (4, 4, 16)),
        ({"hosts": ("a2",)}, "a1", (8, 8, 16)),
        ({"excluded": ("v1", "v2")}, "a1", (8, 8, 16)),
        ({"image": FOR_A100, "gpus_per_node": 4}, "a1", (4, 4, 16)),
        ({"image": a_manifest(), "gpus_per_node": "auto"}, "v1", (4, 4, 10)),
        ({"image": a_manifest(software={"torch": "2.13.0"})}, "c1", (0, 1, 64)),  # it has no use for GPUs
    ],
)
def test_the_nodes_that_satisfy_a_request(request_: dict[str, Any], names: str, size: tuple[int, int, int]) -> None:
    fitted = fit(**request_)
    assert fitted.chosen
    assert fitted.chosen.groups[0].names[0] == names
    assert (fitted.size.gpus_per_node, fitted.size.ranks_per_node, fitted.size.cpus_per_rank) == size


def test_one_cpu_node_among_gpu_nodes() -> None:
    """Nobody got GPUs there: the partition was as small as that node."""
    fitted = fit(A100, CPU)
    assert (fitted.size.gpus_per_node, fitted.constraint) == (8, None)
    assert fitted.notes == ("partition gpu: sized for its 2 nodes with 8 GPUs (a100); it also has 1 node without GPUs",)
    assert fit(A100).notes == ()


# What is sent


@pytest.mark.parametrize(
    ("groups", "request_", "constraint"),
    [
        # the size alone selects them
        (MIXED, {"gpus_per_node": 8}, None),
        (MIXED, {"gpus_per_node": 0}, None),  # they can run on nodes with GPUs, too
        ((featured(V100, "v100"), featured(A100, "a100")), {}, Constraint(("v100",))),
        ((featured(V100, "v100", "ib"), featured(A100, "a100")), {"features": ("ib",)}, None),
        ((featured(V100, "v100", "ib"), featured(A100, "ib")), {"features": ("ib",)}, Constraint(("ib", "v100"))),
        # a name of the type before any other feature
        ((featured(V100, "b1", "nvidia_v100", "a1"), featured(A100)), {}, Constraint(("nvidia_v100",))),
        ((featured(V100, "rack1"), featured(A100, "rack2")), {}, Constraint(gpu_type="v100")),
        (MIXED, {}, Constraint(gpu_type="v100")),
        (MIXED, {"features": None}, Constraint(gpu_type="v100")),  # an expression, which cannot be joined
        (MIXED, {"image": FOR_A100, "gpus_per_node": 2}, Constraint(gpu_type="a100")),
        # GPUs without types, and another architecture
        (
            (replace(V100, gpu_type="", features=frozenset({"v100"})), featured(A100, "a100", gpu_type="")),
            {},
            Constraint(("v100",)),
        ),
        ((V100, ARM), {}, Constraint(excluded=("a1", "a2"))),
        ((V100, ARM), {"excluded": ("v2",)}, Constraint(excluded=("v2", "a1", "a2"))),
        ((featured(V100, "x86"), ARM), {}, Constraint(("x86",))),
        # the user has said which
        (MIXED, {"gpu_type": "v100"}, None),
        (MIXED, {"hosts": ("v1",)}, None),
        ((featured(V100, "v100"), featured(A100, "a100")), {"features": ("v100",)}, None),
        (MIXED, {"excluded": ("a1", "a2")}, None),
    ],
)  # fmt: skip  # rows, as they are read
def test_what_keeps_a_job_from_other_nodes(
    groups: tuple[NodeGroup, ...], request_: dict[str, Any], constraint: Optional[Constraint]
) -> None:
    assert fit(*groups, **request_).constraint == constraint


def test_features_that_no_node_is_known_to_have() -> None:
    """Amounts of PBS, and features that Slurm shows as available alone: they select nothing here, and are passed on."""
    named = (featured(V100, "v100"), featured(A100, "a100"))
    fitted = fit(*named, features=("a100", "slots=7"), gpus_per_node=4)
    assert (fitted.size.gpus_per_node, fitted.constraint) == (4, None)
    assert fit(*named, features=("slots=7",)).constraint == Constraint(("slots=7", "v100"))


def test_the_partition_has_nodes_with_what_is_asked_for() -> None:
    old = usual(Partition("old", True, nodes=0, cpus=0, gpus=0), (featured(V100, "v100"),))
    new = usual(Partition("new", False, nodes=0, cpus=0, gpus=0), (featured(A100, "a100"),))
    both = Cluster((old, new), can_select=True)
    assert fit(on=both).partition == "old"
    for request, why in (
        ({"features": ("a100",)}, "no nodes with a100"),
        ({"gpu_type": "a100"}, "no nodes with a100"),
        ({"excluded": ("v1", "v2")}, "all nodes excluded"),
    ):
        fitted = fit(on=both, **request)
        note = f"partition new chosen: 1 of 2 nodes idle, instead of the default old ({why})"
        assert (fitted.partition, fitted.notes) == ("new", (note,))
    assert fit(on=both, features=("gone",)).partition == "old"  # then the scheduler refuses it


def test_what_a_job_asks_for_is_said() -> None:
    also = "; it also has 2 nodes with 8 GPUs (a100)"
    sized = "partition gpu: sized for its 20 nodes with 4 GPUs (v100)"
    assert fit(V100, A100).notes == (f"{sized}, asked for by type{also}",)
    assert fit(featured(V100, "v100"), A100).notes == (f"{sized}, asked for by feature v100{also}",)
    other = replace(V100, arch="aarch64", nodes=2)
    assert fit(V100, other).notes == (
        "partition gpu: sized for its 20 nodes with 4 GPUs (v100, x86_64), asked for by leaving out others;"
        " it also has 2 nodes with 4 GPUs (v100, aarch64)",
    )


def test_a_scheduler_that_selects_by_features_alone() -> None:
    """PBS: neither the type of GPUs nor names of hosts can be asked for."""
    named = cluster(featured(V100, "accelerator_model=v100"), A100, can_select=False)
    assert fit(on=named).constraint == Constraint(("accelerator_model=v100",))
    unnamed = fit(on=cluster(V100, A100, can_select=False))
    assert unnamed.constraint is None
    assert "nothing that a job can ask for tells these from others that fit; it also has 2 nodes" in unnamed.notes[0]


def test_gpus_of_several_types_where_none_are_enough() -> None:
    fitted = fit(nodes=22)
    assert (fitted.size.nodes, fitted.size.gpus_per_node, fitted.constraint) == (22, 4, None)
    assert fitted.notes[1] == "partition gpu: the GPUs of the job may be of several types: a100, v100"
    assert fit(nodes=3, hosts=("a1",)).size.gpus_per_node == 4


# What is waited for, and refused


def test_a_job_waits_for_nodes_that_start_none_now() -> None:
    away = replace(A100, nodes=1, unavailable=("drained", "down", "drained"), idle=0)
    assert fit(away).notes == ()
    note = "partition gpu has 1 usable node, and 2 are drained, and 1 is down: the job waits for them"
    assert fit(away, nodes=4).notes == (note,)
    assert refusal(away, nodes=5) == "partition gpu has 4 usable nodes, 5 requested. Largest that fits: --nodes 4"
    waiting = fit(V100, away, nodes=2, gpus_per_node=8).notes[-1]
    assert waiting.startswith("partition gpu has 1 suitable node, and 2 are drained")


def test_the_nodes_of_a_reservation_are_free_for_its_jobs() -> None:
    reserved = replace(A100, nodes=0, unavailable=("reserved", "in maintenance", "down"))
    assert fit(reserved, nodes=2, in_reservation=True).notes == ()
    assert fit(reserved, nodes=2).notes == (
        "partition gpu has no usable nodes, and 1 is reserved, and 1 is in maintenance, and 1 is down:"
        " the job waits for them",
    )


@pytest.mark.parametrize(
    ("request_", "complaint", "first"),
    [
        ({"gpus_per_node": 9}, "a node of partition gpu has 8 GPUs, 9 requested", "2 nodes with 8 GPUs (a100), 20"),
        (
            {"nodes": 3, "gpus_per_node": 8},
            "partition gpu has 2 suitable nodes, 3 requested",
            "2 nodes with 8 GPUs (a100), 20",
        ),
        ({"ranks_per_node": 129}, "a node of partition gpu has 128 CPUs, 129 requested", "2 nodes with 8 GPUs (a100)"),
        (
            {"gpu_type": "v100", "gpus_per_node": 8},
            "a node of partition gpu has 4 GPUs, 8 requested",
            "20 nodes with 4 GPUs (v100), 2",
        ),
    ],
)
def test_what_can_never_run_is_refused_with_what_there_is(request_: dict[str, Any], complaint: str, first: str) -> None:
    text = refusal(**request_)
    assert text.startswith(f"{complaint} (gpu has {first}"), text
    assert "with 8 GPUs (a100)" in text
    assert "Largest that fits: --" in text


def test_a_partition_without_a_type_keeps_what_its_site_file_says() -> None:
    part = cluster(replace(V100, gpu_type=""), CPU).partitions[0]
    fitted = fit(on=Cluster((replace(part, gpu_type="V100-SXM2-32GB"),), can_select=True))
    assert fitted.chosen
    assert fitted.chosen.gpu_type == "V100-SXM2-32GB"
    part = cluster(V100, A100).partitions[0]
    exact = Cluster((replace(part, gpu_type="V100-SXM2-32GB"),), can_select=True)
    types = [size.chosen.gpu_type for size in (fit(on=exact), fit(on=exact, gpus_per_node=8)) if size.chosen]
    assert types == ["V100-SXM2-32GB", "a100"]


def test_the_nodes_of_an_allocation() -> None:
    part = cluster(*MIXED).partitions[0]
    allocation = Allocation("41", 1, "gpu", cpus=64, gpus=8)
    assert of_allocation(part, allocation).gpu_type == "a100"
    assert of_allocation(part, replace(allocation, cpus=8, gpus=2)).gpu_type == ""
    assert of_allocation(cluster(V100).partitions[0], allocation).gpu_type == "v100"
