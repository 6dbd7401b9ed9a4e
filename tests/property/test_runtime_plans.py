"""Laws of a plan: it never asks for more than there is, and its world is nodes x ranks."""

from __future__ import annotations

from typing import Any, Optional

from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.base import time_limit
from ctrain_runtime.cluster.model import Allocation, Cluster, Partition
from ctrain_runtime.errors import ResourceError, UsageError
from ctrain_runtime.job import Resources
from ctrain_runtime.plan.model import LaunchPlan
from samples.plans import a_job, a_plan, some_facts

few = st.integers(-2, 12)
maybe = st.none() | few
counts = few | st.just("auto")
limits = st.none() | st.integers(1, 10000)
partitions = st.builds(
    Partition,
    name=st.just("p"),
    default=st.booleans(),
    nodes=st.integers(0, 10),
    cpus=st.integers(1, 10),
    gpus=st.integers(0, 9),
    gpu_type=st.just(""),
    time_limit=limits,
    threads_per_core=st.sampled_from([1, 2]),
    max_nodes=st.none() | st.integers(1, 10),
)
allocations = st.none() | st.builds(
    Allocation,
    job_id=st.just("1"),
    nodes=st.integers(1, 9),
    partition=st.just("p"),
    cpus=st.integers(1, 9),
    gpus=st.integers(0, 9),
    minutes_left=limits,
)
resources = st.builds(
    Resources,
    nodes=few,
    gpus_per_node=counts,
    ranks_per_node=counts,
    time=st.sampled_from(["1", "1:00:00", "7-0", "infinite"]),
)


launchers = st.sampled_from(["mpi", "env", "torchrun"])


@given(
    partitions, allocations, resources, maybe, maybe, maybe, st.sampled_from(["", "1", "7-0", "infinite"]), launchers
)
def test_a_plan_holds_or_is_refused(
    partition: Partition,
    allocation: Optional[Allocation],
    requested: Resources,
    nodes: Optional[int],
    gpus: Optional[int],
    ranks: Optional[int],
    limit: str,
    launcher: str,
) -> None:
    facts = some_facts(cluster=Cluster((partition,), ("pmix",), allocation))
    options: dict[str, Any] = {"nodes": nodes, "gpus_per_node": gpus, "ranks_per_node": ranks, "time": limit}
    try:
        plan = a_plan(job=a_job(resources=requested, launcher=launcher), facts=facts, **options)
    except (ResourceError, UsageError):
        return
    available = allocation or partition
    assert 1 <= plan.size.nodes <= available.nodes
    assert 0 <= plan.size.gpus_per_node <= (available.gpus or 0)
    assert plan.size.ranks_per_node >= 1
    assert plan.size.cpus_per_rank >= plan.size.cores_per_rank >= 1
    assert plan.size.ranks_per_node * plan.size.cpus_per_rank <= available.cpus
    for option, planned in (
        (nodes, plan.size.nodes),
        (gpus, plan.size.gpus_per_node),
        (ranks, plan.size.ranks_per_node),
    ):
        assert option in (None, planned)
    _check_time(plan, partition, allocation, limit)
    _check_tasks(plan)


def _check_time(plan: LaunchPlan, partition: Partition, allocation: Optional[Allocation], limit: str) -> None:
    if allocation:
        assert plan.size.time_limit == allocation.minutes_left
        return
    if partition.time_limit is not None:
        assert plan.size.time_limit is not None
        assert plan.size.time_limit <= partition.time_limit
    if limit:
        assert plan.size.time_limit == time_limit.parse_limit(limit)


def _check_tasks(plan: LaunchPlan) -> None:
    """Whatever starts them, the ranks of all tasks are the world."""
    assert plan.size.world_size == plan.size.nodes * plan.size.ranks_per_node == plan.tasks * plan.ranks_per_task
    assert plan.cpus_per_task * plan.tasks == plan.size.cpus_per_rank * plan.size.world_size
    assert plan.program.launcher == "mpirun" or plan.tasks == plan.size.nodes * plan.tasks_per_node


@given(st.integers(1, 100000))
def test_a_time_limit_reads_back(minutes: int) -> None:
    assert time_limit.parse_limit(time_limit.format_limit(minutes)) == minutes
