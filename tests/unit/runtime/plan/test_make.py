from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.cluster.facts import Facts
from ctrain_runtime.cluster.model import Allocation, Cluster
from ctrain_runtime.errors import ConfigError, UsageError
from samples.plans import CLUSTER, ENGINE, GPU_PARTITION, LOCAL, RUN, a_job, a_plan, a_site
from samples.plans import some_facts as facts


def inside(**allocation: Any) -> Facts:
    plain = Allocation("41", 4, "skl", cpus=20, gpus=2)
    return facts(cluster=dataclasses.replace(CLUSTER, allocation=dataclasses.replace(plain, **allocation)))


@pytest.mark.parametrize(
    ("launcher", "tasks", "tasks_per_node", "ranks_per_task", "cpus_per_task"),
    [("mpi", 6, 3, 1, 21), ("env", 6, 3, 1, 21), ("gloo", 6, 3, 1, 21), ("torchrun", 2, 1, 3, 63)],
)
def test_tasks_and_ranks(
    launcher: Any, tasks: int, tasks_per_node: int, ranks_per_task: int, cpus_per_task: int
) -> None:
    plan = a_plan(job=a_job(launcher=launcher), nodes=2, ranks_per_node=3)
    assert (plan.size.nodes, plan.size.ranks_per_node, plan.size.world_size) == (2, 3, 6)
    assert (plan.tasks, plan.tasks_per_node, plan.ranks_per_task) == (tasks, tasks_per_node, ranks_per_task)
    assert (plan.size.cpus_per_rank, plan.cpus_per_task) == (21, cpus_per_task)


def test_mpirun_is_one_task_whatever_the_groups_of_ranks() -> None:
    plan = a_plan(**LOCAL, nodes=3, ranks_per_node=2)
    assert (plan.program.launcher, plan.tasks, plan.tasks_per_node, plan.ranks_per_task) == ("mpirun", 1, 1, 6)


@pytest.mark.parametrize(
    ("launcher", "preferred", "offered", "chosen"),
    [
        ("mpi", ("pmix", "pmi2"), ("pmi2", "pmix"), "pmix"),
        ("mpi", ("pmix", "pmi2"), ("none", "pmi2"), "pmi2"),
        ("mpi", ("pmix_v4",), ("pmix", "pmix_v4"), "pmix_v4"),
        ("env", ("pmix",), (), ""),
        ("torchrun", ("pmix",), ("pmix",), ""),
    ],
)
def test_how_the_scheduler_starts_mpi(
    launcher: Any, preferred: tuple[str, ...], offered: tuple[str, ...], chosen: str
) -> None:
    here = facts(cluster=Cluster((GPU_PARTITION,), offered))
    assert a_plan(job=a_job(launcher=launcher), site=a_site(mpi=preferred), facts=here).program.mpi == chosen


def test_the_size_is_the_schedulers() -> None:
    plan = a_plan(nodes=2, gpus_per_node=4)
    assert (plan.size.nodes, plan.size.gpus_per_node, plan.size.ranks_per_node) == (2, 4, 4)
    assert (plan.size.cpus_per_rank, plan.size.cores_per_rank, plan.size.memory) == (8, 8, None)
    assert (plan.placement.partition, plan.size.time_limit) == ("amd_a100nv_8", 60)


def test_an_allocation() -> None:
    plan = a_plan(facts=inside(in_step=True))
    assert (plan.placement.allocation, plan.placement.in_step, plan.size.nodes, plan.size.gpus_per_node) == (
        "41",
        True,
        4,
        2,
    )
    assert (a_plan(facts=inside()).placement.in_step, a_plan().placement.allocation, a_plan().placement.in_step) == (
        False,
        None,
        False,
    )


def test_options_that_a_site_requires() -> None:
    site = a_site(required=("account", "comment"))
    with pytest.raises(UsageError, match=r"^site neuron requires --account\. Pass --account VALUE, or set `submit: "):
        a_plan(site=site)
    assert a_plan(site=a_site(required=("comment",), comment="pytorch")).placement.settings == {"comment": "pytorch"}
    site = a_site(required=("account",), submit=("--account=ai",))
    assert a_plan(site=site).placement.options == ("--account=ai",)
    assert a_plan(site=a_site(required=("account",)), settings={"account": "ai"}).placement.settings == {
        "account": "ai"
    }


def test_settings_and_further_options_of_the_scheduler() -> None:
    site = a_site(submit=("--constraint=ib",), comment="pytorch", cpu_bind="sockets")
    plan = a_plan(site=site, settings={"account": "ai"}, scheduler_options=("--switches=1",))
    assert plan.placement.settings == {"comment": "pytorch", "account": "ai"}
    assert plan.placement.options == ("--constraint=ib", "--switches=1")
    assert plan.placement.cpu_bind == "sockets"
    assert a_plan(site=site, settings={"comment": "mine"}, cpu_bind="none").placement.settings == {"comment": "mine"}
    assert (a_plan().placement.settings, a_plan().placement.options, a_plan().placement.cpu_bind) == (
        {},
        (),
        "cores",
    )  # as the partition allows


def test_the_order_of_gpus() -> None:
    site = a_site(gpu_order=(3, 2, 1, 0))
    assert a_plan(site=site, gpus_per_node=2).placement.gpu_order == (3, 2, 1, 0)
    assert a_plan(site=site, gpus_per_node=0).placement.gpu_order == a_plan().placement.gpu_order == ()


@pytest.mark.parametrize("order", [(0, 0), (1, 2), (0, -1)])
def test_an_order_that_is_not_of_all_gpus(order: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^site neuron: gpu_order must hold each GPU of a node once, not \["):
        a_plan(site=a_site(gpu_order=order))


def test_the_rest_of_a_plan() -> None:
    plan = a_plan(facts=facts(is_root=True), resume="/old/checkpoint")
    assert (plan.run, plan.run_directory, plan.mounts.resume) == ("digits-1", str(RUN), "/old/checkpoint")
    assert plan.program.command == ("python", "train.py")
    assert (plan.job, plan.site, plan.scheduler, plan.image.engine) == ("digits", "neuron", "slurm", ENGINE)
    assert (plan.program.as_root, plan.image.lease, plan.program.workdir) == (True, "", "/opt/ctrain/examples/digits")


def test_the_lease_of_the_image_is_the_runs_own() -> None:
    leases = {
        a_plan(facts=facts(lease_dir="/apps/in-use"), run_directory=Path(run)).image.lease
        for run in ("/a/run", "/b/run")
    }
    assert len(leases) == 2
    assert all(lease.startswith("/apps/in-use/pytorch_24.12-hd") for lease in leases)


@pytest.mark.parametrize(
    ("options", "keys", "problem"),
    [
        ({"hang_after": "0s"}, {}, r"--hang-after: invalid duration '0s'. Write it as in 90s, 10m or 2h"),
        ({"hang_after": "30"}, {}, r"--hang-after: invalid duration '30'"),
        ({}, {"hang_after": "half an hour"}, r"job .*: hang_after: invalid duration 'half an hour'"),
        ({"on_hang": "restart"}, {}, r"--on-hang restart is for runs with restarts, of which there are none"),
        ({}, {"on_hang": "restart"}, r"job .*: on_hang: restart is for runs with restarts"),
    ],
)
def test_hangs_that_cannot_be_looked_for(options: dict[str, Any], keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        a_plan(job=a_job(**keys), **options)


def test_the_command_line_wins_over_what_the_job_says_of_hangs() -> None:
    job = a_job(hang_after="2h", on_hang="stop")
    assert (a_plan(job=job).program.hang_after, a_plan(job=job).program.on_hang) == (7200, "stop")
    plan = a_plan(job=job, hang_after="90s", on_hang="report")
    assert (plan.program.hang_after, plan.program.on_hang) == (90, "report")
