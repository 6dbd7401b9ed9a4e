"""What preflights have shown: in this run, and in earlier ones, which is cached."""

from __future__ import annotations

from collections.abc import Iterable

from ctrain_runtime.base.user_cache import UserCache
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run.events import Event

STAGE = "preflight"
CACHE = "worlds"


def unproven(plan: LaunchPlan) -> str:
    """Why no preflight of a run like this one has passed here; "" if one has."""
    cache, entry = UserCache(CACHE), _entry(plan)
    if cache.get(*entry) is not None:
        return ""
    nodes = "several nodes of " if plan.size.nodes > 1 else ""
    where = f"on {nodes}{plan.placement.partition or 'this machine'} with launcher {plan.program.launcher}"
    changed = "MPI, engine or network settings changed since this image was checked"
    return f"{changed} {where}" if cache.has(entry[0]) else f"first run of this image {where}"


def remember(plan: LaunchPlan, job: Iterable[Event]) -> None:
    """Cache that the preflight of a run has passed."""
    if plan.checks.preflight and any(event.stage == STAGE and event.what == "passed" for event in job):
        UserCache(CACHE).put(*_entry(plan), True)


def messages(events: Iterable[Event]) -> tuple[str, ...]:
    """What the preflight has measured, and why it has failed; each once, as all ranks may write the same."""
    return tuple(dict.fromkeys(event.message for event in events if event.stage == STAGE))


def _entry(plan: LaunchPlan) -> tuple[str, list[object]]:
    prefixes = ("OMPI_", "PMIX_", "UCX_", "NCCL_", "GLOO_", "FI_")
    settings = {name: value for name, value in plan.environment.variables.items() if name.startswith(prefixes)}
    own = plan.placement.constraint
    of_kind = f" {own.gpu_type or '&'.join(own.features)}" if own else ""  # of the partition's nodes
    where = f"{plan.site} {plan.placement.partition}{of_kind}"
    world = f"{where} {plan.program.launcher} {plan.image.digest} {plan.size.nodes > 1}"
    return world, [plan.program.mpi, plan.image.engine.version, settings]
