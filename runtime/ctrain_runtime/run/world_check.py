"""Whether the ranks meet here in an image: checked by a short step before its first run, then cached."""

from __future__ import annotations

from collections.abc import Iterable

from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run.events import Event
from ctrain_runtime.user_cache import UserCache

CACHE = "worlds"


def is_needed(plan: LaunchPlan) -> bool:
    """Whether the ranks of a plan have to meet in a way that has not been checked on this cluster."""
    meet = plan.launcher == "mpi" or (plan.launcher == "env" and plan.partition)
    return bool(meet) and plan.world_size > 1 and UserCache(CACHE).get(*_entry(plan)) is None


def remember(plan: LaunchPlan, job: Iterable[Event]) -> None:
    """Cache that the check before a run has passed."""
    if plan.preflight and any(event.stage == "preflight" and event.what == "passed" for event in job):
        UserCache(CACHE).put(*_entry(plan), True)


def _entry(plan: LaunchPlan) -> tuple[str, list[object]]:
    settings = {name: value for name, value in plan.environment.items() if name.startswith(("OMPI_", "PMIX_", "UCX_"))}
    return f"{plan.site} {plan.partition} {plan.launcher} {plan.image.digest}", [
        plan.mpi,
        plan.engine.version,
        settings,
    ]
