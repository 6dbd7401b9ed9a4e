from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run import world_check
from ctrain_runtime.run.events import Event
from samples.plans import LOCAL, a_job, a_plan, an_image, some_facts

PASSED = [Event("started", "preflight"), Event("passed", "preflight"), Event("ended", "after", code=3)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/ctrain/worlds.json"


def checked(plan: LaunchPlan) -> LaunchPlan:
    return dataclasses.replace(plan, preflight=True)


@pytest.mark.parametrize(
    ("parts", "needed"),
    [
        ({}, True),
        ({"job": a_job(launcher="env")}, True),
        ({"nodes": 1, "ranks_per_node": 1}, False),  # a world of one
        ({"job": a_job(launcher="torchrun")}, False),  # its agents meet before they start any rank
        ({**LOCAL, "ranks_per_node": 2}, False),
        ({**LOCAL, "ranks_per_node": 2, "job": a_job(launcher="env")}, False),
    ],
)
def test_which_runs_are_checked(parts: dict[str, Any], needed: bool) -> None:
    assert world_check.is_needed(a_plan(**parts)) == needed


def test_a_check_that_has_passed_is_not_repeated_whatever_became_of_the_run() -> None:
    world_check.remember(checked(a_plan()), PASSED)
    assert not world_check.is_needed(a_plan())
    assert not world_check.is_needed(a_plan(nodes=2, env=("LR=0.1",)))


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
    world_check.remember(checked(a_plan()), events)
    assert world_check.is_needed(a_plan())


def test_a_run_without_a_check_proves_nothing(cache: Path) -> None:
    world_check.remember(a_plan(), PASSED)
    assert world_check.is_needed(a_plan())
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
    world_check.remember(checked(a_plan()), PASSED)
    assert world_check.is_needed(a_plan(**changes))


def test_a_cache_that_cannot_be_written_only_means_another_check(cache: Path) -> None:
    cache.parent.parent.write_text("a file")
    world_check.remember(checked(a_plan()), PASSED)
    assert world_check.is_needed(a_plan())
