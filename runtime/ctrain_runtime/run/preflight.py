"""What the preflights of earlier runs have proven: that is cached."""

from __future__ import annotations

from collections.abc import Iterable

from ctrain_runtime.base.user_cache import UserCache
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run.events import Event

STAGE = "preflight"
CACHE = "worlds"


def is_proven(plan: LaunchPlan) -> bool:
    """Whether the preflight of a run like this one has passed here."""
    return UserCache(CACHE).get(*_entry(plan)) is not None


def remember(plan: LaunchPlan, job: Iterable[Event]) -> None:
    """Cache that the preflight of a run has passed."""
    if plan.preflight and any(event.stage == STAGE and event.what == "passed" for event in job):
        UserCache(CACHE).put(*_entry(plan), True)


def messages(events: Iterable[Event]) -> tuple[str, ...]:
    """What the preflight has measured, and why it has failed; each once, as all ranks may write the same."""
    return tuple(dict.fromkeys(event.message for event in events if event.stage == STAGE))


def _entry(plan: LaunchPlan) -> tuple[str, list[object]]:
    prefixes = ("OMPI_", "PMIX_", "UCX_", "NCCL_", "GLOO_", "FI_")
    settings = {name: value for name, value in plan.environment.items() if name.startswith(prefixes)}
    return f"{plan.site} {plan.partition} {plan.launcher} {plan.image.digest} {plan.nodes > 1}", [
        plan.mpi,
        plan.engine.version,
        settings,
    ]
