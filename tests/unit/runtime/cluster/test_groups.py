from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ctrain_runtime.cluster import groups
from ctrain_runtime.cluster.model import Node, NodeGroup, Partition

V100 = NodeGroup(40, 4, "v100", memory=190_000, arch="x86_64", names=("v1", "v2"), nodes=20, idle=3)
A100 = NodeGroup(128, 8, "a100", memory=1_000_000, arch="x86_64", names=("a1",), nodes=2, idle=1)
CPU = NodeGroup(64, memory=190_000, arch="x86_64", names=("c1",), nodes=1, idle=1)
PART = Partition("gpu", True, nodes=0, cpus=0, gpus=0)


def a_node(name: str = "n1", **changes: Any) -> Node:
    plain = Node(("gpu",), True, 64, 8, "a100", memory=512_000, arch="x86_64", name=name)
    return replace(plain, **changes)


def test_nodes_of_one_shape_are_a_group() -> None:
    nodes = [
        a_node("n1", memory=513_010),
        a_node("n2", unavailable="drained", idle=False),
        a_node("n3", idle=False),
        a_node("n4", gpus=4),
        a_node("n5", features=frozenset({"nvlink"})),
        a_node("n6", arch=""),
    ]
    first, *others = groups.group(nodes)
    assert first == NodeGroup(
        *(64, 8, "a100", 1, 512_000, "x86_64"),
        names=("n1", "n2", "n3", "n6"),
        nodes=3,
        idle=2,
        unavailable=("drained",),
    )
    assert [one.names for one in others] == [("n4",), ("n5",)]
    assert groups.group([]) == ()


@pytest.mark.parametrize(
    ("nodes", "gpus", "expected"),
    [
        (1, "auto", [V100]),  # most of the GPUs
        (20, "auto", [V100]),
        (2, 8, [A100]),
        (1, 0, [V100, A100, CPU]),
        (22, "auto", [V100, A100]),  # of two types, since none is enough
        (24, "auto", [V100]),  # which is then refused
    ],
)
def test_the_kind_of_nodes_that_a_job_is_sized_for(nodes: int, gpus: Any, expected: list[NodeGroup]) -> None:
    able = [one for one in (V100, A100, CPU) if gpus == "auto" or one.gpus >= gpus]
    chosen = groups.choose(able, nodes, gpus)
    if gpus == 0:
        assert chosen == (CPU,)  # leaves the GPUs to others
        assert set(groups.choose(able, 2, gpus)) == set(expected)
    else:
        assert list(chosen) == expected


def test_a_job_for_cpus_prefers_nodes_without_gpus() -> None:
    assert groups.choose((V100, CPU), 1, "auto", prefers_gpus=False) == (CPU,)
    assert groups.choose((V100, CPU), 2, "auto", prefers_gpus=False) == (V100,)


def test_nodes_that_start_no_job_now_are_the_second_choice() -> None:
    down = replace(V100, nodes=0, unavailable=("down",) * 20)
    assert groups.choose((down, A100), 1, "auto") == (A100,)
    assert groups.choose((down, A100), 3, "auto") == (down,)  # it waits


def test_one_small_node_does_not_make_a_job_small() -> None:
    large, small = replace(A100, nodes=10), replace(A100, nodes=1, cpus=16)
    assert groups.choose((small, large), 10, "auto") == (large,)
    assert set(groups.choose((small, large), 11, "auto")) == {small, large}
    more = replace(A100, nodes=2, cpus=256, memory=2_000_000)
    assert set(groups.choose((large, more), 1, "auto")) == {large, more}
    less = replace(A100, nodes=3, memory=500_000)
    assert groups.choose((large, less), 1, "auto") == (large,)
    assert set(groups.choose((large, less), 1, "auto", by_memory=False)) == {large, less}


def test_shapes_of_which_none_is_the_larger() -> None:
    wide, deep = replace(A100, nodes=2, cpus=256), replace(A100, nodes=2, memory=2_000_000)
    part = groups.restrict(PART, groups.choose((wide, deep), 4, "auto"), (wide, deep))
    assert (part.nodes, part.cpus, part.memory, part.others) == (4, 128, 1_000_000, ())


def test_a_partition_as_far_as_some_of_its_nodes_go() -> None:
    slower = replace(A100, cpus=96, gpus=4, threads_per_core=2, unavailable=("down",), arch="")
    part = groups.restrict(PART, (A100, slower), (V100, A100, slower))
    assert (part.nodes, part.idle, part.existing, part.cpus, part.gpus) == (4, 2, 5, 96, 4)
    assert (part.gpu_type, part.threads_per_core, part.arch) == ("a100", 2, "")
    assert (part.groups, part.others) == ((A100, slower), (V100,))
    assert groups.restrict(PART, (V100, A100), ()).gpu_type == ""
    assert groups.usual(PART, (CPU, V100, A100)).groups == (V100,)
    assert groups.usual(PART, ()).nodes == 0


def test_each_kind_of_nodes() -> None:
    part = replace(groups.usual(PART, (CPU, V100, A100)), gpu_type="V100-SXM2")
    assert [(one.nodes, one.gpus, one.gpu_type) for one in groups.kinds(part)] == [
        (20, 4, "V100-SXM2"),
        (1, 0, ""),
        (2, 8, "a100"),
    ]
    assert groups.kinds(PART) == (PART,)


def test_a_change_of_all_nodes() -> None:
    part = groups.change_nodes(groups.usual(PART, (V100, A100)), lambda one: replace(one, cpus=one.cpus // 2))
    assert (part.cpus, part.groups[0].cpus, part.others[0].cpus, part.others[0].gpu_type) == (20, 20, 64, "a100")


def test_features_name_gpus_that_have_no_type() -> None:
    unnamed = replace(V100, gpu_type="", features=frozenset({"ib", "v100", "rack1"}))
    assert (groups.gpu_type(unnamed), groups.gpu_type(replace(unnamed, gpus=0))) == ("v100", "")
    assert groups.gpu_type(replace(V100, gpu_type="", features=frozenset({"ib"}))) == ""
    part = groups.restrict(PART, (unnamed,), (unnamed, A100, CPU))
    assert groups.gpu_types([part, groups.usual(replace(PART, name="p"), [replace(V100, gpu_type="")])]) == (
        *("v100", "a100"),
        "p",
    )


def test_nodes_in_words() -> None:
    everything = (V100, A100, CPU)
    assert groups.describe(everything, everything) == (
        "20 nodes with 4 GPUs (v100), 2 nodes with 8 GPUs (a100), 1 node without GPUs"
    )
    pair = (A100, replace(A100, nodes=1, cpus=64, memory=500_000, names=("a9",)))
    assert groups.describe(pair[1:], pair) == "1 node with 8 GPUs (a100, 64 CPUs, 480 GB)"
    many = [replace(A100, gpus=gpus) for gpus in range(1, 8)]
    assert groups.describe(many, many).endswith("2 nodes with 5 GPUs (a100), ...")
    alike = (A100, replace(A100, features=frozenset({"rack1"})))
    assert groups.describe(alike, alike) == "4 nodes with 8 GPUs (a100)"
