from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest

from ctrain_runtime.cluster import machine
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.errors import CtrainError, ResourceError, UsageError
from ctrain_runtime.launchers import make_task
from ctrain_runtime.plan.size import JobSize, SizeRequest
from ctrain_runtime.schedulers.local import SCHEDULER
from samples.plans import LOCAL, a_plan

SITE = LOCAL["site"]


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
def test_sizes(
    request_: dict[str, Any], gpus: int, size: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks share the cores that ctrain itself may use, here eight."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "count_gpus", lambda: gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    nodes, ranks, gpus_per_node, cores = size
    assert SCHEDULER.size(SizeRequest(**request_), Cluster(), SITE) == JobSize(
        nodes=nodes, ranks_per_node=ranks, gpus_per_node=gpus_per_node, cpus_per_rank=cores, cores_per_rank=cores
    )


def test_gpus_that_the_caller_has_hidden_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "count_gpus", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    size = SCHEDULER.size(SizeRequest(), Cluster(), SITE)
    assert (size.gpus_per_node, size.ranks_per_node) == (2, 2)
    complaint = "this machine with CUDA_VISIBLE_DEVICES='6,7' has 2 GPUs, 4 requested. Largest that fits: --gpus-per-"
    with pytest.raises(ResourceError, match=f"^{complaint}"):
        SCHEDULER.size(SizeRequest(gpus_per_node=4), Cluster(), SITE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert SCHEDULER.size(SizeRequest(), Cluster(), SITE).gpus_per_node == 0


def test_gpus_reserved_for_fewer_ranks_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "count_gpus", lambda: 8)
    note = "all 8 GPUs of a node are reserved; one per rank: --gpus-per-node 3"
    assert SCHEDULER.size(SizeRequest(ranks_per_node=3), Cluster(), SITE).notes == (note,)


def test_a_time_limit_that_nothing_enforces_is_named() -> None:
    size = SCHEDULER.size(SizeRequest(time="10", time_is_explicit=True), Cluster(), SITE)
    assert size.notes == ("--time does not apply to site local: nothing ends the run",)
    assert size.time_limit is None


@pytest.mark.parametrize(
    ("request_", "kind", "complaint"),
    [
        ({"nodes": 0}, UsageError, "--nodes must be at least 1, not 0"),
        ({"partition": "skl"}, UsageError, "site local has no partitions. Remove --partition, or select a cluster"),
        (
            {"gpus_per_node": 2},
            ResourceError,
            "this machine has 1 GPU, 2 requested. Largest that fits: --gpus-per-node 1",
        ),
        ({"gpus_per_node": -1}, UsageError, "--gpus-per-node must be at least 0, not -1"),
        ({"ranks_per_node": 0}, UsageError, "--ranks-per-node must be at least 1, not 0"),
    ],
)
def test_what_does_not_fit(
    request_: dict[str, Any], kind: type[CtrainError], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "count_gpus", lambda: 1)
    with pytest.raises(kind) as caught:
        SCHEDULER.size(SizeRequest(**request_), Cluster(), SITE)
    assert str(caught.value).startswith(complaint)


def test_nothing_is_queued() -> None:
    plan = a_plan(**LOCAL)
    assert SCHEDULER.facts(SITE) == Cluster()
    assert SCHEDULER.find(plan) is None
    assert SCHEDULER.failed_task("srun: error: gpu01: task 1: Killed") is None
    assert SCHEDULER.name("host:12:34") == "process 12"


def test_the_gpus_are_those_that_the_driver_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_models", lambda: ("NVIDIA A30",))
    assert SCHEDULER.gpus(SITE) == ("NVIDIA A30",)


def test_options_of_a_scheduler_are_refused() -> None:
    plan = dataclasses.replace(a_plan(**LOCAL), options=("--licenses=x",))
    task = make_task(plan, SCHEDULER.identity(plan))
    with pytest.raises(UsageError, match=r"^site local has no scheduler that could take --licenses=x\. Remove"):
        SCHEDULER.render(plan, task)


@pytest.mark.parametrize(("mask", "count"), [("", 2), ("1", 1), ("0,1", 2), ("0.0,0.1", 1), ("0,0", 1)])
def test_intel_gpus_that_the_caller_has_hidden(mask: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    monkeypatch.setattr(machine, "count_amd_gpus", lambda: 0)
    monkeypatch.setattr(machine, "count_intel_gpus", lambda: 2)
    monkeypatch.setenv("ZE_AFFINITY_MASK", mask)
    assert machine.count_visible_gpus() == count
