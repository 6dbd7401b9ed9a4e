from __future__ import annotations

import os

import pytest

from ctrain_runtime.cluster import machine
from ctrain_runtime.cluster.model import Cluster, Machine
from ctrain_runtime.errors import UsageError
from ctrain_runtime.launchers import make_task
from ctrain_runtime.schedulers.local import SCHEDULER
from samples.plans import LOCAL, a_plan, changed

SITE = LOCAL["site"]


def test_the_cluster_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "count_gpus", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert SCHEDULER.facts(SITE) == Cluster(machine=Machine(8, 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    assert SCHEDULER.facts(SITE).machine == Machine(2, 4, "this machine with CUDA_VISIBLE_DEVICES='6,7'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert SCHEDULER.facts(SITE).machine == Machine(0, 4, "this machine with CUDA_VISIBLE_DEVICES=''")


def test_nothing_is_queued() -> None:
    plan = a_plan(**LOCAL)
    assert SCHEDULER.find(plan) is None
    assert SCHEDULER.failed_task("srun: error: gpu01: task 1: Killed") is None
    assert SCHEDULER.name("host:12:34") == "process 12"


def test_the_gpus_are_those_that_the_driver_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_models", lambda: ("NVIDIA A30",))
    assert SCHEDULER.gpus(SITE) == ("NVIDIA A30",)


def test_options_of_a_scheduler_are_refused() -> None:
    plan = changed(a_plan(**LOCAL), options=("--licenses=x",))
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
