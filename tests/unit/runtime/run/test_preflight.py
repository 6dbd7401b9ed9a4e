from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.plan.model import LaunchPlan, Preflight
from ctrain_runtime.plan.preflight import plan_preflight
from ctrain_runtime.run import preflight
from ctrain_runtime.run.events import Event
from ctrain_runtime.site.model import ExpectedBandwidth, Site
from samples.plans import LOCAL, a_job, a_plan, a_site, an_image, changed, some_facts

CPU = an_image(name="pytorch-cpu", software={"torch": "2.13.0"})
PASSED = [Event("started", "preflight"), Event("passed", "preflight"), Event("ended", "after", code=3)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/ctrain/worlds.json"


def decide(plan: LaunchPlan, site: Site, mode: str = "") -> Optional[Preflight]:
    return plan_preflight(plan, site, mode, preflight.unproven)


def checked(plan: LaunchPlan) -> LaunchPlan:
    return changed(plan, preflight=Preflight(True, "first run of this image here"))


def needed(plan: LaunchPlan) -> bool:
    return decide(plan, a_site()) is not None


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
    assert needed(a_plan(**parts)) == checked


def test_a_check_that_has_passed_is_not_repeated_whatever_became_of_the_run() -> None:
    preflight.remember(checked(a_plan()), PASSED)
    assert not needed(a_plan())
    assert not needed(a_plan(env=("LR=0.1",)))
    assert needed(a_plan(nodes=2, image=CPU))  # the network between them was not proven


@pytest.mark.parametrize("software", [{"torch": "2.6.0", "cuda": "12.6"}, {"torch": "2.6.0", "rocm": "6.2"}])
def test_nccl_on_several_nodes_is_checked_each_time(software: dict[str, str]) -> None:
    """RCCL is torch's back end "nccl", too."""
    plan = a_plan(nodes=2, image=an_image(software=software))
    preflight.remember(checked(plan), PASSED)
    assert decide(plan, a_site()) == Preflight(True, "NCCL on several nodes", "nccl")
    assert decide(plan, a_site(), "off") is None


def test_what_is_requested_takes_place_wherever_a_scheduler_starts_ranks() -> None:
    torchrun = a_job(launcher="torchrun")
    decided = decide(a_plan(nodes=1, job=torchrun), a_site(), "strict")
    assert decided == Preflight(True, "requested", "nccl")
    assert decide(a_plan(**LOCAL, ranks_per_node=2, job=torchrun), a_site(), "strict") is None


@pytest.mark.parametrize(
    "events",
    [
        [],
        [Event("started", "preflight")],
        [Event("started", "preflight"), Event("failed", "preflight")],
        [Event("passed", "run")],
    ],
)
def test_a_check_that_has_not_passed_is_repeated(events: list[Event]) -> None:
    preflight.remember(checked(a_plan()), events)
    assert needed(a_plan())


def test_a_run_without_a_check_proves_nothing(cache: Path) -> None:
    preflight.remember(a_plan(), PASSED)
    assert needed(a_plan())
    assert not cache.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"image": an_image(digest="sha256:0the7")},
        {"facts": some_facts(engine=Engine("apptainer", "/usr/bin/apptainer", "1.5.0"))},
        {"partition": "skl", "ranks_per_node": 2},
        {"env": ("OMPI_MCA_btl=tcp",)},
        {"env": ("UCX_TLS=all",)},
        {"job": a_job(launcher="env")},
    ],
)
def test_it_is_repeated_when_something_that_matters_changes(changes: dict[str, Any]) -> None:
    preflight.remember(checked(a_plan()), PASSED)
    assert needed(a_plan(**changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"partition": "skl", "ranks_per_node": 2}, "first run of this image on skl with launcher mpi"),
        ({"job": a_job(launcher="env")}, "first run of this image on amd_a100nv_8 with launcher env"),
        ({"nodes": 2, "image": CPU}, "first run of this image on several nodes of amd_a100nv_8 with launcher mpi"),
        (
            {"env": ("OMPI_MCA_btl=tcp",)},
            "MPI, engine or network settings changed since this image was checked on amd_a100nv_8 with launcher mpi",
        ),
    ],
)
def test_the_reason_tells_what_is_new(changes: dict[str, Any], reason: str) -> None:
    preflight.remember(checked(a_plan()), PASSED)
    decided = decide(a_plan(**changes), a_site())
    assert decided and decided.reason == reason


def test_a_cache_that_cannot_be_written_only_means_another_check(cache: Path) -> None:
    cache.parent.parent.write_text("a file")
    preflight.remember(checked(a_plan()), PASSED)
    assert needed(a_plan())


FABRIC = {"expected_bandwidth": ExpectedBandwidth(gloo=1, nccl=36.5), "nccl_network": "AWS Libfabric"}


def test_a_site_with_expectations_holds_every_run_on_several_nodes_to_them() -> None:
    plan = a_plan(nodes=2)
    preflight.remember(checked(plan), PASSED)
    reason = f"site {a_site().name} has expectations of its network"
    assert decide(plan, a_site(**FABRIC)) == Preflight(True, reason, "nccl", 36.5, "AWS Libfabric")
    assert decide(a_plan(nodes=2, image=CPU), a_site(**FABRIC)) == Preflight(True, reason, "gloo", 1.0, "")


def test_one_node_is_held_to_no_expectation_of_the_network() -> None:
    decided = decide(a_plan(nodes=1), a_site(**FABRIC))
    assert decided == Preflight(True, "first run of this image on amd_a100nv_8 with launcher mpi", "nccl")


def test_ranks_that_share_gpus_cannot_use_nccl() -> None:
    decided = decide(a_plan(nodes=2, gpus_per_node=2, ranks_per_node=4), a_site(**FABRIC))
    assert decided == Preflight(True, f"site {a_site().name} has expectations of its network", "gloo", 1.0, "")


def test_what_the_command_line_requests() -> None:
    plan, site = a_plan(nodes=2), a_site(**FABRIC)
    assert decide(plan, site, "off") is None
    preflight.remember(checked(plan), PASSED)
    for mode, strict in (("warn", False), ("strict", True)):
        decided = decide(plan, a_site(), mode)
        assert decided == Preflight(strict, "requested", "nccl")


def test_each_message_is_shown_once() -> None:
    """All ranks see that they are alone."""
    alone = Event("failed", "preflight", message="MPI in the image sees 1 ranks, but 4 were started")
    others = [Event("measured", "preflight", message="2 nodes"), Event("started", "run", rank=0)]
    assert preflight.messages([*others, alone, alone]) == ("2 nodes", alone.message)
