from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.base import time_limit
from ctrain_runtime.cluster.model import Allocation, Cluster, Limits, Machine, Partition
from ctrain_runtime.errors import ConfigError, CtrainError, ResourceError, SchedulerError, UsageError
from ctrain_runtime.plan import sizing
from ctrain_runtime.plan.size import JobFit, JobSize, SizeRequest
from ctrain_runtime.site.model import Site
from ctrain_runtime.store.manifest import Manifest
from samples.plans import a_manifest

SITE = Site(name="neuron", scheduler="slurm")
GPU = Partition(
    name="amd_a100nv_8",
    default=True,
    nodes=8,
    cpus=128,
    gpus=8,
    gpu_type="a100",
    time_limit=2880,
    threads_per_core=2,
    memory=1_000_000,
)
CPU = Partition(name="skl", default=False, nodes=2, cpus=40, gpus=0, time_limit=60, memory=190_000)
CLUSTER = Cluster((GPU, CPU), ("pmix", "none"))
ALLOCATION = Allocation("41", nodes=2, partition="skl", cpus=16, gpus=4, memory=64_000, minutes_left=35)


def fit(cluster: Cluster = CLUSTER, site: Site = SITE, **request: Any) -> JobFit:
    return sizing.fit(SizeRequest(**request), cluster, site)


def inside(cluster: Cluster = CLUSTER, **allocation: Any) -> Cluster:
    return dataclasses.replace(cluster, allocation=dataclasses.replace(ALLOCATION, **allocation))


def test_a_whole_node() -> None:
    size = JobSize(nodes=1, ranks_per_node=8, gpus_per_node=8, cpus_per_rank=16, cores_per_rank=8, time_limit=60)
    notes = ("partition amd_a100nv_8 chosen: the cluster's default",)
    assert fit() == JobFit(size, partition="amd_a100nv_8", chosen=GPU, notes=notes)


@pytest.mark.parametrize(
    ("request_", "gpus", "ranks", "cpus", "cores"),
    [
        ({"gpus_per_node": 1}, 1, 1, 16, 8),
        ({"gpus_per_node": 3}, 3, 3, 16, 8),
        ({"gpus_per_node": 2, "ranks_per_node": 1}, 2, 1, 32, 16),
        ({"gpus_per_node": 8, "ranks_per_node": 1}, 8, 1, 128, 64),
        ({"gpus_per_node": 1, "ranks_per_node": 3}, 1, 3, 4, 2),  # whole cores: 5 CPUs would be 2.5
        ({"gpus_per_node": 1, "ranks_per_node": 16}, 1, 16, 1, 1),
        ({"gpus_per_node": 1, "ranks_per_node": 20}, 1, 20, 1, 1),
        ({"gpus_per_node": 0}, 0, 1, 16, 8),  # seven GPUs keep their CPUs
        ({"partition": "skl"}, 0, 1, 40, 40),
        ({"partition": "skl", "ranks_per_node": 3}, 0, 3, 13, 13),
    ],
)
def test_cpus_go_with_the_gpus(request_: dict[str, Any], gpus: int, ranks: int, cpus: int, cores: int) -> None:
    fitted = fit(**request_)
    assert (fitted.size.gpus_per_node, fitted.size.ranks_per_node) == (gpus, ranks)
    assert (fitted.size.cpus_per_rank, fitted.size.cores_per_rank) == (cpus, cores)


def test_a_site_can_give_a_gpu_fewer_cpus() -> None:
    site = dataclasses.replace(SITE, cpus_per_gpu=8, memory_per_gpu=50_000)
    fitted = fit(site=site, gpus_per_node=2)
    assert (fitted.size.cpus_per_rank, fitted.size.memory) == (8, 100_000)
    assert fit(site=dataclasses.replace(SITE, cpus_per_gpu=100)).size.cpus_per_rank == 16  # no more than there are
    assert fit(site=site, partition="skl").size.cpus_per_rank == 40
    assert fit(site=site, partition="skl").size.memory is None
    generous = dataclasses.replace(SITE, memory_per_gpu=200_000)
    assert fit(site=generous, gpus_per_node=8).size.memory == GPU.memory, "no more than there is"


@pytest.mark.parametrize(
    ("request_", "memory"),
    [
        ({}, 1_000_000),
        ({"gpus_per_node": 2}, 250_000),
        ({"gpus_per_node": 0}, 125_000),
        ({"partition": "skl"}, 190_000),
    ],
)
def test_memory_goes_with_the_gpus_where_it_is_allocated(request_: dict[str, Any], memory: int) -> None:
    assert fit(dataclasses.replace(CLUSTER, memory_is_consumable=True), **request_).size.memory == memory
    assert fit(**request_).size.memory is None


def test_administrators_defaults_for_memory_stand() -> None:
    partitions = (dataclasses.replace(GPU, has_memory_default=True),)
    assert fit(Cluster(partitions=partitions, memory_is_consumable=True)).size.memory is None


def test_the_choice_of_a_partition() -> None:
    assert fit().partition == "amd_a100nv_8"
    assert fit(site=dataclasses.replace(SITE, partition="skl")).partition == "skl"
    assert fit(site=dataclasses.replace(SITE, partition="skl"), partition="amd_a100nv_8").size.gpus_per_node == 8
    busy = Cluster(partitions=(dataclasses.replace(GPU, idle=0), dataclasses.replace(CPU, idle=2)))
    reason = "partition amd_a100nv_8 chosen: 0 of 8 nodes idle, the cluster's default"
    elsewhere = "other partitions are idle, where the run would differ: skl: 1 rank and 0 GPUs per node"
    assert (fit(busy).partition, fit(busy).notes) == ("amd_a100nv_8", (reason, elsewhere))
    assert fit(busy, gpus_per_node=0).partition == "skl"
    assert fit(site=dataclasses.replace(SITE, partition_order=("skl",))).partition == "skl"
    assert (fit(busy, partition="amd_a100nv_8").partition, fit(busy, partition="amd_a100nv_8").notes) == (GPU.name, ())
    no_default = Cluster(partitions=(CPU, dataclasses.replace(GPU, default=False)))
    assert fit(no_default).partition == "skl"


@pytest.mark.parametrize(
    ("image", "request_", "sized"),
    [
        (a_manifest(arch=""), {}, ["amd_a100nv_8"]),
        (a_manifest(arch="arm64"), {"gpus_per_node": 1}, ["amd_a100nv_8", "grace"]),  # an image of other nodes
        (a_manifest(arch=""), {"partition": "skl"}, ["skl"]),
        (None, {"nodes": 99}, ["amd_a100nv_8"]),  # no image is pulled for what fits nowhere
    ],
)
def test_a_job_is_sized_once_but_where_its_image_runs_elsewhere(
    image: Optional[Manifest], request_: dict[str, Any], sized: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grace = dataclasses.replace(GPU, name="grace", default=False, arch="aarch64", gpu_type="gh200")
    cluster = Cluster((dataclasses.replace(GPU, arch="x86_64"), CPU, grace))
    tried, pulled, fit_partition = [], [], sizing._fit_partition

    def count(request: SizeRequest, cluster: Cluster, site: Site, partition: Partition) -> JobFit:
        tried.append(partition.name)
        return fit_partition(request, cluster, site, partition)

    def find_image() -> Optional[Manifest]:
        pulled.append(image)
        return image

    monkeypatch.setattr(sizing, "_fit_partition", count)
    with contextlib.suppress(ResourceError):
        assert sizing.fit(SizeRequest(**request_), cluster, SITE, find_image).partition == sized[-1]
    assert (tried, pulled) == (sized, [image] if image else [])


@pytest.mark.parametrize("cluster", [CLUSTER, inside(gpus=8)])
def test_gpus_that_ranks_may_not_use_are_not_reserved_without_a_word(cluster: Cluster) -> None:
    """As of torchrun --nproc-per-node 3."""
    unused = "all 8 GPUs of a node are reserved; one per rank: --gpus-per-node 3"
    assert unused in fit(cluster, ranks_per_node=3).notes
    for request in ({}, {"ranks_per_node": 8}, {"ranks_per_node": 3, "gpus_per_node": 8}, {"gpus_per_node": 0}):
        assert not [note for note in fit(cluster, **request).notes if "reserved" in note]


def test_nodes_that_the_user_names_count_more_than_the_partition_of_the_site() -> None:
    cluster = dataclasses.replace(CLUSTER, members={GPU.name: frozenset({"a1"}), CPU.name: frozenset({"c1"})})
    site = dataclasses.replace(SITE, partition=GPU.name)
    assert fit(cluster, site=site, hosts=("c1",)).partition == CPU.name
    assert fit(cluster, site=site, hosts=("a1",)).partition == GPU.name
    assert fit(cluster, site=site, hosts=("c1",), partition=GPU.name).partition == GPU.name  # then Slurm refuses


def refusal(kind: type[CtrainError], cluster: Cluster = CLUSTER, **request: Any) -> str:
    with pytest.raises(kind) as caught:
        fit(cluster, **request)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "request_", "message"),
    [
        (
            ResourceError,
            {"nodes": 9},
            "partition amd_a100nv_8 has 8 usable nodes, 9 requested. Largest that fits: --nodes 8",
        ),
        (
            ResourceError,
            {"gpus_per_node": 9},
            "a node of partition amd_a100nv_8 has 8 GPUs, 9 requested. Largest that fits: --gpus-per-node 8",
        ),
        (
            ResourceError,
            {"gpus_per_node": 1, "partition": "skl"},
            "a node of partition skl has no GPUs, 1 requested. Largest that fits: --gpus-per-node 0",
        ),
        (
            ResourceError,
            {"ranks_per_node": 41, "partition": "skl"},
            "a node of partition skl has 40 CPUs, 41 requested. Largest that fits: --ranks-per-node 40",
        ),
        (ResourceError, {"partition": "sk"}, "partition 'sk' not found among those that are up. Did you mean 'skl'?"),
        (
            ResourceError,
            {"partition": "zzz"},
            "partition 'zzz' not found among those that are up. Available: amd_a100nv_8, skl",
        ),
        (
            ResourceError,
            {"partition": "skl", "time": "2:00:00", "time_is_explicit": True},
            "partition skl allows 01:00:00, 2:00:00 requested. Longest that fits: --time 01:00:00",
        ),
        (UsageError, {"time": "0"}, "--time must be at least one minute, not '0'"),
        (UsageError, {"nodes": 0}, "--nodes must be at least 1, not 0"),
        (UsageError, {"gpus_per_node": -1}, "--gpus-per-node must be at least 0, not -1"),
    ],
)
def test_what_does_not_fit_is_refused(kind: type[CtrainError], request_: dict[str, Any], message: str) -> None:
    assert refusal(kind, **request_) == message


def test_no_partition_is_up() -> None:
    assert refusal(SchedulerError, Cluster()).startswith("no partition is up. Retry later")


def test_a_partition_that_limits_the_nodes_of_a_job() -> None:
    cluster = Cluster(partitions=(dataclasses.replace(GPU, max_nodes=4),))
    assert fit(cluster, nodes=4).size.nodes == 4
    expected = "partition amd_a100nv_8 allows 4 nodes per job, 5 requested. Largest that fits: --nodes 4"
    assert refusal(ResourceError, cluster, nodes=5) == expected


@pytest.mark.parametrize(
    ("most", "nodes", "complaint"),
    [
        (4, 9, "partition amd_a100nv_8 allows 4 nodes per job, 9 requested. Largest that fits: --nodes 4"),
        (20, 9, "partition amd_a100nv_8 has 8 usable nodes, 9 requested. Largest that fits: --nodes 8"),
        (8, 9, "partition amd_a100nv_8 has 8 usable nodes, 9 requested. Largest that fits: --nodes 8"),
    ],
)
def test_what_is_said_to_fit_fits(most: int, nodes: int, complaint: str) -> None:
    """--nodes 24 was said to fit the queue debug of Polaris, which takes jobs of 2."""
    cluster = Cluster((dataclasses.replace(GPU, max_nodes=most),))
    with pytest.raises(ResourceError) as caught:
        fit(cluster, nodes=nodes)
    assert str(caught.value) == complaint
    assert fit(cluster, nodes=int(complaint.rpartition(" ")[2])).size.nodes


def test_a_job_waits_for_nodes_in_maintenance() -> None:
    """As sbatch queues it (ReqNodeNotAvail); on the day of a maintenance every run was refused."""
    some = dataclasses.replace(GPU, nodes=5, unavailable=("in maintenance",) * 3)
    assert fit(Cluster((some,)), nodes=5).notes == ()
    note = "partition amd_a100nv_8 has 5 usable nodes, and 3 are in maintenance: the job waits for them"
    assert fit(Cluster((some,)), nodes=8).notes == (note,)
    whole = dataclasses.replace(GPU, nodes=0, unavailable=("in maintenance",))
    note = "partition amd_a100nv_8 has no usable nodes, and 1 is in maintenance: the job waits for them"
    assert fit(Cluster((whole,))).notes[-1] == note
    with pytest.raises(ResourceError, match="has 8 usable nodes, 9 requested"):
        fit(Cluster((some,)), nodes=9)


def test_another_partition_is_chosen_rather_than_nodes_in_maintenance() -> None:
    closed = dataclasses.replace(GPU, nodes=0, unavailable=("in maintenance",) * 8)
    other = dataclasses.replace(GPU, name="other", default=False)
    chosen = fit(Cluster((closed, other)))
    assert (chosen.partition, chosen.notes) == (
        "other",
        ("partition other chosen: instead of the default amd_a100nv_8 (0 usable nodes)",),
    )


def test_other_partitions_that_take_the_job_are_named() -> None:
    """Those with GPUs of other types, too, but not those without, for other CPUs, or too small themselves."""
    parts = {
        "v100": {"gpu_type": "v100", "gpus": 4},
        "large": {},
        "cpus": {"gpus": 0},
        "arm": {"arch": "aarch64"},
        "small": {"nodes": 3},
        "short": {"time_limit": 30},
        "testing": {"max_nodes": 2},
    }
    big = dataclasses.replace(GPU, arch="x86_64")
    more = tuple(
        dataclasses.replace(big, **{"name": name, "default": False, "nodes": 64, **changes})
        for name, changes in parts.items()
    )
    cluster, own = Cluster((big, *more)), "partition amd_a100nv_8"
    for request, complaint in (
        ({"nodes": 9, "time": "1:00:00"}, f"{own} has 8 usable nodes, 9 requested. Largest that fits: --nodes 8"),
        ({"time": "72:00:00"}, f"{own} allows 2-00:00:00, 72:00:00 requested. Longest that fits: --time 2-00:00:00"),
    ):
        with pytest.raises(ResourceError) as caught:
            fit(cluster, partition="amd_a100nv_8", time_is_explicit=True, **request)
        others = "; other partitions take it as it is: v100, large" if "nodes" in request else ""
        assert str(caught.value) == complaint + others


def test_limits_of_a_job_that_are_not_the_partitions_own() -> None:
    cluster = dataclasses.replace(CLUSTER, qos="normal", limits={"QOS normal": Limits(2, 8, 30)})
    scope, another = "partition amd_a100nv_8 (QOS normal)", "another QOS may allow more: --qos NAME"
    assert (
        refusal(ResourceError, cluster, nodes=3)
        == f"{scope} allows 2 nodes per job, 3 requested. Largest that fits: --nodes 2; {another}"
    )
    late = {"time": "2:00:00", "time_is_explicit": True}
    assert refusal(ResourceError, cluster, **late).endswith(f"Longest that fits: --time 00:30:00; {another}")
    expected = f"{scope} allows 8 GPUs per job, 16 requested. Largest that fits: --gpus-per-node 4"
    assert refusal(ResourceError, cluster, nodes=2) == expected
    note = f"time limit shortened from 1:00:00 to 00:30:00, the maximum of {scope}"
    assert fit(cluster).notes[-1] == note
    assert fit(cluster, nodes=2, gpus_per_node=4).size.time_limit == 30


def test_a_partition_for_large_jobs() -> None:
    cluster = Cluster(partitions=(dataclasses.replace(GPU, min_nodes=4),))
    expected = "partition amd_a100nv_8 needs at least 4 nodes per job, 1 requested. Smallest that fits: --nodes 4"
    assert refusal(ResourceError, cluster) == expected


def test_a_partition_that_is_closed_is_refused_with_the_reason() -> None:
    cluster = Cluster((CPU,), closed=(dataclasses.replace(GPU, closed="drained"),))
    assert refusal(ResourceError, cluster, partition=GPU.name) == "partition amd_a100nv_8 is drained. Available: skl"
    assert refusal(SchedulerError, dataclasses.replace(cluster, partitions=())) == (
        "no partition is up; amd_a100nv_8 is drained. Retry later, or ask the administrators"
    )


def test_the_default_time_of_a_job_is_shortened_and_that_is_noted() -> None:
    fitted = fit(partition="skl", time="UNLIMITED")
    assert fitted.size.time_limit == 60
    assert fitted.notes == ("time limit shortened from UNLIMITED to 01:00:00, the maximum of partition skl",)
    assert fit(partition="skl", time="45:00", time_is_explicit=True).notes == ()
    endless = Cluster(partitions=(dataclasses.replace(GPU, time_limit=None),))
    assert fit(endless, time="UNLIMITED").size.time_limit is None


def test_a_step_in_an_allocation() -> None:
    size = JobSize(nodes=2, ranks_per_node=4, gpus_per_node=4, cpus_per_rank=4, cores_per_rank=4, time_limit=35)
    assert fit(inside(), nodes="auto") == JobFit(size, partition="skl", chosen=CPU)


def test_an_allocation_shares_its_memory_among_steps() -> None:
    consumable = inside(dataclasses.replace(CLUSTER, memory_is_consumable=True))
    assert fit(consumable, gpus_per_node=1).size.memory == 16_000
    assert fit(consumable).size.memory is None


def test_options_that_do_not_apply_in_an_allocation_are_noted() -> None:
    fitted = fit(inside(), time="2:00:00", time_is_explicit=True, partition="amd_a100nv_8")
    assert fitted.partition == "skl"
    assert fitted.notes == (
        "--time 2:00:00 does not apply inside allocation 41; 00:35:00 of its time is left",
        "--partition amd_a100nv_8 does not apply inside allocation 41 (partition skl)",
    )
    assert fit(inside(), time="2:00:00", partition="skl").notes == ()
    (note,) = fit(inside(minutes_left=None), time="2:00:00", time_is_explicit=True).notes
    assert note.endswith("it has no time limit")


def test_an_allocation_is_the_limit() -> None:
    expected = "allocation 41 has 2 nodes, 3 requested. Largest that fits: --nodes 2"
    assert refusal(ResourceError, inside(), nodes=3) == expected
    expected = "a node of allocation 41 has 4 GPUs, 5 requested. Largest that fits: --gpus-per-node 4"
    assert refusal(ResourceError, inside(), gpus_per_node=5) == expected


def test_gpus_of_an_allocation_that_cannot_be_counted_are_asked_for() -> None:
    unknown = inside(gpus=None)
    expected = (
        "the scheduler does not show how many GPUs a node of allocation 41 has. Pass the number: --gpus-per-node N"
    )
    assert refusal(SchedulerError, unknown) == expected
    fitted = fit(unknown, gpus_per_node=2)
    assert (fitted.size.gpus_per_node, fitted.size.ranks_per_node, fitted.size.cpus_per_rank) == (2, 2, 8)


def test_an_allocation_whose_partition_is_no_longer_up() -> None:
    assert fit(Cluster(allocation=ALLOCATION)).size.nodes == 1


@given(
    gpus=st.one_of(st.just("auto"), st.integers(0, 8)),
    ranks=st.one_of(st.just("auto"), st.integers(1, 128)),
    node_gpus=st.integers(0, 8),
    cpus=st.integers(1, 256),
    threads=st.sampled_from([1, 2, 4]),
    consumable=st.booleans(),
)
def test_no_job_asks_for_more_than_a_node_has(
    gpus: int | str, ranks: int | str, node_gpus: int, cpus: int, threads: int, consumable: bool
) -> None:
    partition = dataclasses.replace(GPU, cpus=cpus, gpus=node_gpus, threads_per_core=threads)
    cluster = Cluster(partitions=(partition,), memory_is_consumable=consumable)
    try:
        fitted = fit(cluster, gpus_per_node=gpus, ranks_per_node=ranks)
    except ResourceError:
        return
    assert 1 <= fitted.size.ranks_per_node * fitted.size.cpus_per_rank <= cpus
    assert 1 <= fitted.size.cores_per_rank <= fitted.size.cpus_per_rank
    assert fitted.size.memory is None or 0 < fitted.size.memory <= partition.memory


RANGES = (time_limit.NodeRange(10, 24, 180), time_limit.NodeRange(25, 99, 360), time_limit.NodeRange(150, 496, 1440))
PROD = dataclasses.replace(GPU, name="prod", nodes=560, time_limit=None, min_nodes=10, max_nodes=496, by_nodes=RANGES)


@pytest.mark.parametrize(
    ("request_", "complaint", "hint"),
    [
        (
            {"nodes": 10, "time": "20:00:00", "time_is_explicit": True},
            "partition prod (jobs of 10 to 24 nodes) allows 03:00:00, 20:00:00 requested",
            "Longest that fits: --time 03:00:00",
        ),
        ({"nodes": 2}, "partition prod needs at least 10 nodes per job, 2 requested", "Smallest that fits: --nodes 10"),
        (
            {"nodes": 497},
            "partition prod allows 496 nodes per job, 497 requested",
            "Largest that fits: --nodes 496",
        ),
        (
            {"nodes": 120},
            "partition prod takes no jobs of 120 nodes",
            "Nearest that fit: --nodes 99 or --nodes 150",
        ),
    ],
)
def test_a_job_that_no_queue_takes_is_refused(request_: dict[str, Any], complaint: str, hint: str) -> None:
    """PBS takes it, finds no queue behind the routing one that does, and drops it without a word."""
    with pytest.raises(ResourceError) as caught:
        fit(Cluster((PROD,)), partition="prod", **request_)
    assert (caught.value.message, caught.value.hint) == (complaint, hint)


@pytest.mark.parametrize(("nodes", "minutes"), [(10, 180), (24, 180), (25, 360), (496, 1200)])
def test_the_limit_of_time_depends_on_the_nodes(nodes: int, minutes: int) -> None:
    assert fit(Cluster((PROD,)), nodes=nodes, time="20:00:00").size.time_limit == minutes


def test_the_widest_of_ranges_that_overlap() -> None:
    part = dataclasses.replace(PROD, by_nodes=(*RANGES, time_limit.NodeRange(1, None, None)))
    assert fit(Cluster((part,)), nodes=20, time="20:00:00").size.time_limit == 1200
    part = dataclasses.replace(part, time_limit=60)
    assert fit(Cluster((part,)), nodes=20, time="20:00:00").size.time_limit == 60


def test_interactive_jobs_end_earlier() -> None:
    site = dataclasses.replace(SITE, interactive_time="8:00:00")
    shell = {"interactive": True, "time_is_explicit": True}
    assert fit(site=site, time="8:00:00", **shell).size.time_limit == 480
    assert fit(site=site, time="24:00:00").size.time_limit == 1440
    assert fit(site=site, time="24:00:00", interactive=True).size.time_limit == 480
    assert fit(site=site, partition="skl", gpus_per_node=0, interactive=True, time="8:00:00").size.time_limit == 60
    with pytest.raises(ResourceError, match=r"\(interactive jobs\) allows 08:00:00, 9:00:00 requested"):
        fit(site=site, time="9:00:00", **shell)
    with pytest.raises(ConfigError, match=r"^site neuron: interactive_time: invalid time limit 'soon'"):
        fit(site=dataclasses.replace(SITE, interactive_time="soon"), interactive=True)


# --- A machine without a scheduler


def fit_machine(gpus: int = 0, scope: str = "this machine", **request: Any) -> JobFit:
    return fit(Cluster(machine=Machine(gpus, 8, scope)), Site(name="local", scheduler="local"), **request)


@pytest.mark.parametrize(
    ("request_", "gpus", "size"),
    [
        ({}, 0, (1, 1, 0, 8)),
        ({}, 2, (1, 2, 2, 4)),
        ({"gpus_per_node": 1}, 2, (1, 1, 1, 8)),
        ({"gpus_per_node": 0}, 2, (1, 1, 0, 8)),
        ({"nodes": 2, "ranks_per_node": 2}, 0, (2, 2, 0, 2)),
        ({"nodes": "auto", "ranks_per_node": 3}, 2, (1, 3, 2, 2)),
        ({"ranks_per_node": 9}, 0, (1, 9, 0, 1)),
        ({"time": "10"}, 0, (1, 1, 0, 8)),
    ],
)
def test_ranks_share_the_cores_of_a_machine(
    request_: dict[str, Any], gpus: int, size: tuple[int, int, int, int]
) -> None:
    nodes, ranks, gpus_per_node, cores = size
    assert fit_machine(gpus, **request_).size == JobSize(
        nodes=nodes, ranks_per_node=ranks, gpus_per_node=gpus_per_node, cpus_per_rank=cores, cores_per_rank=cores
    )


def test_gpus_of_a_machine_reserved_for_fewer_ranks_are_noted() -> None:
    note = "all 8 GPUs of a node are reserved; one per rank: --gpus-per-node 3"
    assert fit_machine(8, ranks_per_node=3).notes == (note,)


def test_a_time_limit_that_nothing_enforces_is_named() -> None:
    size = fit_machine(time="10", time_is_explicit=True)
    assert size.notes == ("--time does not apply to site local: nothing ends the run",)
    assert size.size.time_limit is None


@pytest.mark.parametrize(
    ("request_", "kind", "complaint"),
    [
        ({"nodes": 0}, UsageError, "--nodes must be at least 1, not 0"),
        ({"partition": "skl"}, UsageError, "site local has no partitions. Remove --partition, or select a cluster"),
        (
            {"gpus_per_node": 2, "scope": "this machine with CUDA_VISIBLE_DEVICES='6'"},
            ResourceError,
            "this machine with CUDA_VISIBLE_DEVICES='6' has 1 GPU, 2 requested. Largest that fits: --gpus-per-node 1",
        ),
        ({"gpus_per_node": -1}, UsageError, "--gpus-per-node must be at least 0, not -1"),
        ({"ranks_per_node": 0}, UsageError, "--ranks-per-node must be at least 1, not 0"),
    ],
)
def test_what_does_not_fit_a_machine(request_: dict[str, Any], kind: type[CtrainError], complaint: str) -> None:
    with pytest.raises(kind) as caught:
        fit_machine(1, **request_)
    assert str(caught.value).startswith(complaint)
