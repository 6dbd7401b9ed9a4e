from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime.cluster.model import Constraint
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.plan.model import LaunchPlan, Preflight
from ctrain_runtime.plan.preflight import plan_preflight
from ctrain_runtime.run import preflight_results
from ctrain_runtime.run.events import Event
from ctrain_runtime.site.model import Site
from samples.plans import a_job, a_plan, a_site, an_image, changed, some_facts

CPU = an_image(name="pytorch-cpu", software={"torch": "2.13.0"})
PASSED = [Event("started", "preflight"), Event("passed", "preflight"), Event("ended", "after", code=3)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/ctrain/worlds.json"


def decide(plan: LaunchPlan, site: Site, mode: str = "") -> Optional[Preflight]:
    return plan_preflight(plan, site, mode, preflight_results.unproven)


def checked(plan: LaunchPlan) -> LaunchPlan:
    return changed(plan, preflight=Preflight(True, "first run of this image here"))


def needed(plan: LaunchPlan) -> bool:
    return decide(plan, a_site()) is not None


def test_a_check_that_has_passed_is_not_repeated_whatever_became_of_the_run() -> None:
    preflight_results.remember(checked(a_plan()), PASSED)
    assert not needed(a_plan())
    assert not needed(a_plan(env={"LR": "0.1"}))
    assert needed(a_plan(nodes=2, image=CPU))  # the network between them was not proven
    assert needed(changed(a_plan(), constraint=Constraint(gpu_type="v100")))  # nor those nodes


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
    preflight_results.remember(checked(a_plan()), events)
    assert needed(a_plan())


def test_a_run_without_a_check_proves_nothing(cache: Path) -> None:
    preflight_results.remember(a_plan(), PASSED)
    assert needed(a_plan())
    assert not cache.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"image": an_image(digest="sha256:0the7")},
        {"facts": some_facts(engine=Engine("apptainer", "/usr/bin/apptainer", "1.5.0"))},
        {"partition": "skl", "ranks_per_node": 2},
        {"env": {"OMPI_MCA_btl": "tcp"}},
        {"env": {"UCX_TLS": "all"}},
        {"job": a_job(launcher="env")},
    ],
)
def test_it_is_repeated_when_something_that_matters_changes(changes: dict[str, Any]) -> None:
    preflight_results.remember(checked(a_plan()), PASSED)
    assert needed(a_plan(**changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"partition": "skl", "ranks_per_node": 2}, "first run of this image on skl with launcher mpi"),
        ({"job": a_job(launcher="env")}, "first run of this image on amd_a100nv_8 with launcher env"),
        ({"nodes": 2, "image": CPU}, "first run of this image on several nodes of amd_a100nv_8 with launcher mpi"),
        (
            {"env": {"OMPI_MCA_btl": "tcp"}},
            "MPI, engine or network settings changed since this image was checked on amd_a100nv_8 with launcher mpi",
        ),
    ],
)
def test_the_reason_tells_what_is_new(changes: dict[str, Any], reason: str) -> None:
    preflight_results.remember(checked(a_plan()), PASSED)
    decided = decide(a_plan(**changes), a_site())
    assert decided and decided.reason == reason


def test_a_cache_that_cannot_be_written_only_means_another_check(cache: Path) -> None:
    cache.parent.parent.write_text("a file")
    preflight_results.remember(checked(a_plan()), PASSED)
    assert needed(a_plan())


def test_each_message_is_shown_once() -> None:
    """All ranks see that they are alone."""
    alone = Event("failed", "preflight", message="MPI in the image sees 1 ranks, but 4 were started")
    others = [Event("measured", "preflight", message="2 nodes"), Event("started", "run", rank=0)]
    assert preflight_results.messages([*others, alone, alone]) == ("2 nodes", alone.message)
