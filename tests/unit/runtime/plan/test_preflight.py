"""Whether a preflight takes place, what it expects, and why."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from ctrain_runtime.plan.model import LaunchPlan, Preflight
from ctrain_runtime.plan.preflight import plan_preflight
from ctrain_runtime.site.model import ExpectedBandwidth, Site
from samples.plans import LOCAL, a_job, a_plan, a_site, an_image

CPU = an_image(name="pytorch-cpu", software={"torch": "2.13.0"})
UNPROVEN = "first run of this image here"
FABRIC = {"expected_bandwidth": ExpectedBandwidth(gloo=1, nccl=36.5), "nccl_network": "AWS Libfabric"}


def decide(plan: LaunchPlan, site: Site, mode: str = "", unproven: str = "") -> Optional[Preflight]:
    return plan_preflight(plan, site, mode, lambda _: unproven)


@pytest.mark.parametrize(
    ("parts", "checked"),
    [
        ({}, True),
        ({"job": a_job(launcher="env")}, True),
        ({"nodes": 1, "ranks_per_node": 1}, False),  # a world of one
        ({"job": a_job(launcher="torchrun"), "nodes": 1}, False),  # its agents meet before they start any rank
        ({"job": a_job(launcher="torchrun"), "nodes": 2}, True),  # but the network between them may be slow
        ({**LOCAL, "ranks_per_node": 2}, False),
        ({**LOCAL, "ranks_per_node": 2, "job": a_job(launcher="env")}, False),
    ],
)
def test_which_runs_are_checked(parts: dict[str, Any], checked: bool) -> None:
    assert (decide(a_plan(**parts), a_site(), unproven=UNPROVEN) is not None) == checked


@pytest.mark.parametrize("software", [{"torch": "2.6.0", "cuda": "12.6"}, {"torch": "2.6.0", "rocm": "6.2"}])
def test_nccl_on_several_nodes_is_checked_each_time(software: dict[str, str]) -> None:
    """RCCL is torch's back end "nccl", too."""
    plan = a_plan(nodes=2, image=an_image(software=software))
    assert decide(plan, a_site()) == Preflight(True, "NCCL on several nodes", "nccl")
    assert decide(plan, a_site(), "off") is None


def test_what_is_requested_takes_place_wherever_a_scheduler_starts_ranks() -> None:
    torchrun = a_job(launcher="torchrun")
    decided = decide(a_plan(nodes=1, job=torchrun), a_site(), "strict")
    assert decided == Preflight(True, "requested", "nccl")
    assert decide(a_plan(**LOCAL, ranks_per_node=2, job=torchrun), a_site(), "strict") is None


def test_a_site_with_expectations_holds_every_run_on_several_nodes_to_them() -> None:
    plan = a_plan(nodes=2)
    reason = f"site {a_site().name} has expectations of its network"
    assert decide(plan, a_site(**FABRIC)) == Preflight(True, reason, "nccl", 36.5, "AWS Libfabric")
    assert decide(a_plan(nodes=2, image=CPU), a_site(**FABRIC)) == Preflight(True, reason, "gloo", 1.0, "")


def test_one_node_is_held_to_no_expectation_of_the_network() -> None:
    decided = decide(a_plan(nodes=1), a_site(**FABRIC), unproven=UNPROVEN)
    assert decided == Preflight(True, UNPROVEN, "nccl")
    assert decide(a_plan(nodes=1), a_site(**FABRIC)) is None


def test_ranks_that_share_gpus_cannot_use_nccl() -> None:
    decided = decide(a_plan(nodes=2, gpus_per_node=2, ranks_per_node=4), a_site(**FABRIC))
    assert decided == Preflight(True, f"site {a_site().name} has expectations of its network", "gloo", 1.0, "")


def test_what_the_command_line_requests() -> None:
    plan, site = a_plan(nodes=2), a_site(**FABRIC)
    assert decide(plan, site, "off") is None
    for mode, strict in (("warn", False), ("strict", True)):
        decided = decide(plan, a_site(), mode)
        assert decided == Preflight(strict, "requested", "nccl")
