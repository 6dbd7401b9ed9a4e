"""Whether a preflight takes place before a run, and what it has proven: that is cached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from ctrain_runtime.base.user_cache import UserCache
from ctrain_runtime.plan.model import LaunchPlan, Preflight
from ctrain_runtime.run.events import Event
from ctrain_runtime.site.model import Site

STAGE = "preflight"
CACHE = "worlds"


def decide(plan: LaunchPlan, site: Site, mode: str = "") -> Optional[Preflight]:
    """The preflight of a plan; None without one. `mode` is that of the command line, "" if not given.

    By default it keeps short jobs short: it takes place on several nodes if the site has expectations or NCCL connects
    them, and before the first run of an image here.
    """
    across = plan.nodes > 1 and bool(plan.partition)
    if (
        mode == "off"
        or plan.world_size == 1
        or plan.independent
        or not (across or _ranks_meet(plan) or (mode and plan.partition))
    ):
        return None
    # NCCL needs a GPU for each rank. Under ROCm, RCCL has its name, its variables and its log.
    has_gpus = (plan.image.cuda or plan.image.rocm) and plan.ranks_per_node <= plan.gpus_per_node
    backend = "nccl" if has_gpus else "gloo"
    expected = float(getattr(site.expected_bandwidth, backend)) if across else 0.0
    network = site.nccl_network if across and backend == "nccl" else ""
    if mode:
        reason = "requested"
    elif expected or network:
        reason = f"site {site.name} has expectations of its network"
    elif across and backend == "nccl":  # which may fall back to sockets on any node, at any time
        reason = "NCCL on several nodes"
    elif UserCache(CACHE).get(*_entry(plan)) is None:
        reason = "first run of this image here"
    else:
        return None
    return Preflight(mode != "warn", reason, backend, expected, network)


def remember(plan: LaunchPlan, job: Iterable[Event]) -> None:
    """Cache that the preflight of a run has passed."""
    if plan.preflight and any(event.stage == STAGE and event.what == "passed" for event in job):
        UserCache(CACHE).put(*_entry(plan), True)


def messages(events: Iterable[Event]) -> tuple[str, ...]:
    """What the preflight has measured, and why it has failed; each once, as all ranks may write the same."""
    return tuple(dict.fromkeys(event.message for event in events if event.stage == STAGE))


def _ranks_meet(plan: LaunchPlan) -> bool:
    """Whether the ranks have to meet in a way that may fail on one node, too."""
    return plan.launcher == "mpi" or (plan.launcher == "env" and bool(plan.partition))


def _entry(plan: LaunchPlan) -> tuple[str, list[object]]:
    prefixes = ("OMPI_", "PMIX_", "UCX_", "NCCL_", "GLOO_", "FI_")
    settings = {name: value for name, value in plan.environment.items() if name.startswith(prefixes)}
    return f"{plan.site} {plan.partition} {plan.launcher} {plan.image.digest} {plan.nodes > 1}", [
        plan.mpi,
        plan.engine.version,
        settings,
    ]
