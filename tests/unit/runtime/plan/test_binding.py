from __future__ import annotations

from typing import Any, Optional

import pytest

from ctrain_runtime.plan import binding
from samples.plans import a_job, a_plan, a_site

AURORA = "list:4-7:8-11:12-15:16-19"


@pytest.mark.parametrize(
    ("cpu_bind", "ranks", "used", "cores"),
    [
        ("cores", 4, "cores", None),
        ("depth", 4, "depth", None),
        ("", 4, "", None),
        (AURORA, 4, AURORA, 4),
        (AURORA, 2, "list:4-7:8-11", 4),
        (AURORA, 5, "none", None),
        ("list:4:9", 2, "list:4:9", 1),
        ("list:0-3,8-11:4", 2, "list:0-3,8-11:4", 1),
        ("list:0-3,8-11:4-7", 1, "list:0-3,8-11", 8),
        ("verbose,list:0-3:4-7", 1, "verbose,list:0-3", 4),
        ("map_cpu:0,16", 2, "map_cpu:0,16", 1),
        ("mask_cpu:0xfe,0xfe00", 2, "mask_cpu:0xfe,0xfe00", 7),
        ("mask_cpu:fe,fe00", 1, "mask_cpu:fe", 7),
    ],
)
def test_a_list_fits_the_ranks(cpu_bind: str, ranks: int, used: str, cores: Optional[int]) -> None:
    assert binding.fit(cpu_bind, ranks) == (used, cores)


def test_ranks_have_as_many_threads_as_cores() -> None:
    """One core and 8 threads on it were rendered."""
    plan = a_plan(site=a_site(cpu_bind="list:4:9:14:19:20:25:56:61"))
    assert (plan.placement.cpu_bind, plan.size.cores_per_rank) == ("list:4:9:14:19:20:25:56:61", 1)
    plan = a_plan(site=a_site(cpu_bind="list:0-7:8-15"), gpus_per_node=1)
    assert (plan.placement.cpu_bind, plan.size.cores_per_rank) == ("list:0-7", 8)


def test_a_list_that_is_too_short_is_not_used_and_that_is_a_note() -> None:
    site = a_site(cpu_bind="list:0-7:8-15")
    plan = a_plan(site=site)
    assert (plan.placement.cpu_bind, plan.size.cores_per_rank) == ("none", 8)
    assert binding.note(plan, site) == (
        "ranks are not bound to cores: cpu_bind of site neuron lists fewer than 8 per node"
    )
    assert binding.note(a_plan(site=site, gpus_per_node=2), site) == ""
    assert binding.note(a_plan(cpu_bind="none"), a_site()) == ""


def test_a_list_of_the_user_is_passed_on_and_counts_for_threads() -> None:
    plan = a_plan(cpu_bind="map_cpu:0,1")
    assert (plan.placement.cpu_bind, plan.size.cores_per_rank) == ("map_cpu:0,1", 8)
    plan = a_plan(cpu_bind="map_cpu:0,1", gpus_per_node=2)
    assert (plan.placement.cpu_bind, plan.size.cores_per_rank) == ("map_cpu:0,1", 1)


def test_torchrun_has_the_cores_of_all_its_ranks() -> None:
    plan = a_plan(site=a_site(cpu_bind=AURORA), job=a_job(launcher="torchrun"))
    assert (plan.placement.cpu_bind, plan.size.cores_per_rank) == ("none", 8)


@pytest.mark.parametrize(
    ("keys", "launcher", "noted"),
    [
        ({"cpu_bind": AURORA}, "torchrun", True),
        ({"gpu_order": (1, 0)}, "torchrun", True),
        ({"gpu_order": (1, 0)}, "env", False),
        ({"gpu_order": (1, 0)}, "node", False),  # the command's own business
        ({"cpu_bind": "cores"}, "torchrun", False),
    ],
)
def test_ranks_of_torchrun_that_are_not_next_to_their_gpus(keys: Any, launcher: str, noted: bool) -> None:
    site = a_site(**keys)
    plan = a_plan(site=site, job=a_job(launcher=launcher), gpus_per_node=2)
    assert ("not bound to the cores next to their GPUs" in binding.note(plan, site)) is noted
    alone = a_plan(site=site, job=a_job(launcher=launcher), gpus_per_node=1)
    assert "next to" not in binding.note(alone, site)
