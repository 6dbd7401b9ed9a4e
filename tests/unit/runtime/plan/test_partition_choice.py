from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from ctrain_runtime.cluster.model import Access, Cluster, Limits, Partition
from ctrain_runtime.plan.partition_choice import choose_partition, limit
from ctrain_runtime.plan.size import SizeRequest
from ctrain_runtime.store.manifest import Requires
from samples.plans import a_manifest

V100 = Partition("v100", True, nodes=4, cpus=32, gpus=4, gpu_type="v100", time_limit=2880, arch="x86_64", idle=2)
A100 = replace(V100, name="a100", default=False, nodes=8, gpus=8, gpu_type="a100", idle=3)
DEBUG = replace(V100, name="debug", default=False, time_limit=30, idle=4)
CPU = replace(V100, name="cpu", default=False, gpus=0, gpu_type="", idle=4)
ARM = replace(A100, name="arm", arch="aarch64", idle=8)
CLUSTER = Cluster((V100, A100, DEBUG, CPU, ARM), account="ai", qos="normal")
ANY_GPU = a_manifest()  # with CUDA; its GPUs are unknown
FOR_A100 = a_manifest(requires=Requires(arch=("8.0", "9.0")))
NO_GPU = a_manifest(software={"torch": "2.13.0"})
IDLE = "2 of 4 nodes idle"
ELSEWHERE = "other partitions are idle, where the run would differ"


def choose(cluster: Cluster = CLUSTER, **request: Any) -> tuple[str, str]:
    part, notes = choose_partition(SizeRequest(**{"image": ANY_GPU, **request}), cluster)
    prefix = f"partition {part.name} chosen: "
    assert all(note.startswith(prefix) for note in notes[:1])
    return part.name, "; ".join(notes)[len(prefix) :]


def changed(name: str, **changes: Any) -> Cluster:
    parts = (replace(part, **changes) if part.name == name else part for part in CLUSTER.partitions)
    return replace(CLUSTER, partitions=tuple(parts))


@pytest.mark.parametrize(
    ("request_", "name", "reason"),
    [
        ({}, "v100", f"{IDLE}, the cluster's default"),
        ({"nodes": 2}, "v100", f"{IDLE}, the cluster's default"),
        ({"nodes": 3}, "v100", f"{IDLE}, the cluster's default; {ELSEWHERE}: a100: 8 ranks and 8 GPUs (a100) per node"),
        (
            {"nodes": 3, "ranks_per_node": 2, "gpus_per_node": 2},
            "v100",
            f"{IDLE}, the cluster's default; {ELSEWHERE}: a100: 2 ranks and 2 GPUs (a100) per node",
        ),
        ({"nodes": 4}, "v100", f"{IDLE}, the cluster's default"),  # it waits everywhere; debug is too short
        ({"nodes": 4, "time": "30"}, "debug", f"4 of 4 nodes idle, instead of v100 ({IDLE}), of the same shape"),
        ({"nodes": 5}, "a100", "3 of 8 nodes idle, instead of the default v100 (4 usable nodes)"),
        ({"gpus_per_node": 8}, "a100", "3 of 8 nodes idle, instead of the default v100 (4 GPUs per node)"),
        ({"ranks_per_node": 33}, "v100", ""),  # fits nowhere
        (
            {"image": FOR_A100},
            "a100",
            "3 of 8 nodes idle, instead of the default v100 (GPU V100 (compute capability 7.0) is older"
            " than the image's GPU code (8.0 9.0))",
        ),
        ({"image": FOR_A100, "gpus_per_node": 0}, "v100", f"{IDLE}, the cluster's default"),
        (
            {"image": replace(ANY_GPU, arch="arm64")},
            "arm",
            "8 of 8 nodes idle, instead of the default v100 (partition v100 is x86_64, the image is for arm64)",
        ),
        ({"image": replace(ANY_GPU, arch="")}, "v100", f"{IDLE}, the cluster's default"),  # of a sandbox
        ({"image": NO_GPU}, "v100", f"{IDLE}, the cluster's default"),
        (
            {"image": NO_GPU, "nodes": 4},
            "v100",
            f"{IDLE}, the cluster's default; {ELSEWHERE}: cpu: 1 rank and 0 GPUs per node",
        ),
        (
            {"image": NO_GPU, "nodes": 4, "gpus_per_node": 0},  # one rank per node, wherever
            "cpu",
            f"4 of 4 nodes idle, instead of v100 ({IDLE}), of the same shape",
        ),
        ({"image": None}, "v100", f"{IDLE}, the cluster's default"),
        ({"time": "3-00:00:00"}, "v100", f"{IDLE}, the cluster's default"),  # a job's default is shortened
        ({"time": "3-00:00:00", "time_is_explicit": True}, "v100", ""),  # then the size refuses it
        ({"nodes": "auto", "gpus_per_node": "auto"}, "v100", f"{IDLE}, the cluster's default"),
    ],
)
def test_the_choice(request_: dict[str, Any], name: str, reason: str) -> None:
    assert choose(**request_) == (name, reason)


@pytest.mark.parametrize(
    ("changes", "request_", "why"),
    [
        ({"nodes": 0, "idle": 0}, {}, "0 usable nodes"),  # drained and down ones do not count
        ({"max_nodes": 1}, {"nodes": 2}, "at most 1 nodes per job"),
        ({"min_nodes": 2}, {}, "at least 2 nodes per job"),
        ({"max_gpus": 7}, {"nodes": 2, "gpus_per_node": 4}, "at most 7 GPUs per job"),
        ({"closed": "drained"}, {}, "drained"),
        ({"accounts": Access(allowed=("bio",))}, {}, "closed to account ai"),
        ({"accounts": Access(denied=("ai",))}, {}, "closed to account ai"),
        ({"qos": Access(allowed=("long",))}, {}, "closed to QOS normal"),
        ({"preemptible": True}, {}, "preemptible"),
        ({"time_limit": 59}, {}, "time limit 00:59:00"),
    ],
)
def test_why_the_default_is_not_chosen(changes: dict[str, Any], request_: dict[str, Any], why: str) -> None:
    reason = f"3 of 8 nodes idle, instead of the default v100 ({why})"
    assert choose(changed("v100", **changes), **request_) == ("a100", reason)


def test_the_account_and_qos_of_the_command_line() -> None:
    cluster = changed("v100", accounts=Access(allowed=("bio",)), qos=Access(denied=("normal",)))
    assert choose(cluster, account="bio", qos="long")[0] == "v100"
    assert choose(cluster, account="bio")[0] == "a100"


def test_unknown_accounts_are_not_refused() -> None:
    cluster = replace(changed("v100", accounts=Access(allowed=("bio",))), account="")
    assert choose(cluster)[0] == "v100"


def test_a_default_that_is_closed_is_named_with_the_reason() -> None:
    closed = replace(V100, closed="down")
    reason = "3 of 8 nodes idle, instead of the default v100 (down)"
    assert choose(Cluster((A100,), closed=(closed,))) == ("a100", reason)
    assert choose(Cluster((CPU, DEBUG), closed=(closed,)), nodes=9) == ("cpu", "")  # nothing fits: not the closed one


def test_nodes_that_the_user_wants_are_in_the_partition() -> None:
    cluster = replace(CLUSTER, members={"v100": {"n1", "n2"}, "a100": {"n3"}, "debug": {"n2"}})
    reason = "3 of 8 nodes idle, instead of the default v100 (without node n3)"
    assert choose(cluster, hosts=("n3",)) == ("a100", reason)
    assert choose(cluster, hosts=("n1", "n2"))[0] == "v100"
    assert choose(cluster, hosts=("n1", "n3")) == ("v100", "")  # none has both: then Slurm refuses the nodes


@pytest.mark.parametrize(
    ("request_", "own_qos", "expected"),
    [
        ({}, "", (2, 16, 60, "QOS normal, account ai")),
        ({"qos": "unlimited"}, "", (8, None, 60, "account ai")),
        ({"qos": "unknown", "account": "bio"}, "", (None, None, 2880, "")),
        ({}, "part", (2, 4, 60, "QOS normal, QOS part, account ai")),
        ({"qos": "over"}, "part", (1, 4, 60, "QOS over, QOS part, account ai")),
        ({"qos": "long"}, "", (8, None, 2880, "account ai")),  # longer than the partition's own limit
    ],
)
def test_limits_of_qos_and_account(request_: dict[str, str], own_qos: str, expected: tuple[Any, ...]) -> None:
    limits = {
        "QOS normal": Limits(max_nodes=2, max_gpus=16),
        "QOS unlimited": Limits(),
        "QOS part": Limits(max_gpus=4),
        "QOS over": Limits(max_nodes=1, max_gpus=None, overrides=True),
        "QOS long": Limits(time_limit=9999),
        "account ai": Limits(max_nodes=8, time_limit=60),
    }
    cluster = Cluster((replace(V100, own_qos=own_qos),), account="ai", qos="normal", limits=limits)
    (part,) = limit(SizeRequest(**request_), cluster).partitions
    assert (part.max_nodes, part.max_gpus, part.time_limit, part.limited_by) == expected


@pytest.mark.parametrize("idle", [0, 2, 4, None])
def test_how_many_nodes_are_idle_does_not_change_ranks_or_gpus(idle: Optional[int]) -> None:
    """Else the same command would train with another number of ranks, on another GPU, from one hour to the next."""
    for cluster in (changed("v100", idle=idle), changed("v100", idle=idle, gpu_type="")):
        assert choose(cluster)[0] == "v100"


def test_idle_nodes_of_the_same_kind_are_used() -> None:
    twin = replace(V100, name="twin", default=False, idle=4)
    busy = replace(V100, idle=0)
    reason = "4 of 4 nodes idle, instead of v100 (0 of 4 nodes idle), of the same shape"
    assert choose(Cluster((busy, A100, twin))) == ("twin", reason)
    assert choose(Cluster((busy, replace(twin, idle=None))))[0] == "v100"
    assert choose(Cluster((busy, replace(twin, preemptible=True))))[0] == "v100"
    assert choose(Cluster((busy, replace(twin, gpus=2))))[0] == "v100"
    assert choose(Cluster((busy, replace(twin, gpus=2))), gpus_per_node=2)[0] == "twin"
    # Types that are not known may differ, unless the nodes are the same.
    unknown = tuple(replace(part, gpu_type="") for part in (busy, twin))
    assert choose(Cluster(unknown))[0] == "v100"
    assert choose(Cluster(unknown, members=dict.fromkeys(("v100", "twin"), frozenset(("n1",)))))[0] == "twin"


def test_a_site_has_an_order_of_preference() -> None:
    request = SizeRequest(image=ANY_GPU)
    part, (reason, *_) = choose_partition(request, CLUSTER, ("nowhere", "cpu", "a100", "v100"))
    assert part.name == "a100", "cpu has no GPUs"
    fits = "the first of the site's partition_order that fits"
    assert reason.endswith(f": 3 of 8 nodes idle, {fits}, instead of cpu (no GPUs)")
    assert choose_partition(request, changed("a100", idle=0), ("a100",))[0].name == "a100"
    assert choose_partition(replace(request, nodes=9), CLUSTER, ("a100",))[0].name == "v100", "then nothing fits"


def test_a_preferred_partition_without_nodes_is_named_where_another_one_has_other_gpus() -> None:
    """It was left out without a word: the same command had 4 ranks in the place of 8 as long as nodes were drained."""
    drained = changed("a100", nodes=0, idle=0)
    part, (reason, *_) = choose_partition(SizeRequest(image=ANY_GPU), drained, ("a100",))
    assert part.name == "v100"
    assert reason.endswith(f": {IDLE}, the cluster's default, instead of a100 (0 usable nodes)")


def test_a_default_that_is_chosen_as_the_idle_one_is_said_to_be_idle() -> None:
    twin = replace(V100, name="twin", default=False, idle=0)
    part, (reason,) = choose_partition(SizeRequest(image=ANY_GPU), Cluster((V100, twin)), ("twin",))
    assert part.name == "v100"
    assert reason.endswith(f": {IDLE}, instead of twin (0 of 4 nodes idle), of the same shape")


def test_without_a_default_it_is_the_first_that_fits() -> None:
    parts = tuple(replace(part, default=False) for part in (CPU, V100, A100))
    assert choose(Cluster(parts)) == ("v100", "2 of 4 nodes idle, the first that fits")
    assert choose(Cluster(parts), image=NO_GPU)[0] == "cpu"


def test_partitions_of_a_site_file() -> None:
    parts = tuple(replace(part, default=False, idle=None) for part in (CPU, V100, A100))
    assert choose(Cluster(parts)) == ("v100", "the first that fits")


def test_one_partition_is_no_choice() -> None:
    assert choose(Cluster((A100,))) == ("a100", "")


def test_an_image_of_an_unknown_architecture_is_not_offered_the_unusual_one() -> None:
    """An image that is not pulled yet, on Neuron: most likely for x86, so gh200_1 is not for it."""
    unknown = a_manifest(arch="", software={})
    busy = Cluster((replace(V100, idle=0), ARM))
    assert "arm" in choose(busy, image=a_manifest(arch="arm64"), gpus_per_node=1)[0]
    assert choose(busy, image=unknown) == ("v100", "0 of 4 nodes idle, the cluster's default")
    reason = choose(Cluster((V100, ARM)), image=unknown, gpus_per_node=8)
    assert reason == ("v100", "")  # none fits: what is wrong is said of the default
    assert choose(Cluster((replace(V100, arch=""), ARM)), image=unknown, gpus_per_node=8)[0] == "arm"
