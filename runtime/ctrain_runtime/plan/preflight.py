"""Whether a preflight takes place before a run, what it expects, and why. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from ctrain_runtime.plan.model import LaunchPlan, Preflight
from ctrain_runtime.site.model import Site


def plan_preflight(
    plan: LaunchPlan, site: Site, mode: str, unproven: Callable[[LaunchPlan], str]
) -> Optional[Preflight]:
    """The preflight of a plan; None without one. `mode` is that of the command line, "" if not given; `unproven` tells
    why no preflight of such a run has passed here ("": one has).

    By default it keeps short jobs short: it takes place on several nodes if the site has expectations or NCCL connects
    them, and before the first run of an image here.
    """
    across = plan.crosses_network
    if (
        mode == "off"
        or plan.size.world_size == 1
        or plan.program.independent
        or not (across or _ranks_meet(plan) or (mode and plan.placement.partition))
    ):
        return None
    # NCCL needs a GPU for each rank. Under ROCm, RCCL has its name, its variables and its log.
    has_gpus = (plan.image.cuda or plan.image.rocm) and plan.size.ranks_per_node <= plan.size.gpus_per_node
    backend = "nccl" if has_gpus else "gloo"
    expected = float(getattr(site.expected_bandwidth, backend)) if across else 0.0
    network = site.nccl_network if across and backend == "nccl" else ""
    if mode:
        reason = "requested"
    elif expected or network:
        reason = f"site {site.name} has expectations of its network"
    elif across and backend == "nccl":  # which may fall back to sockets on any node, at any time
        reason = "NCCL on several nodes"
    else:
        reason = unproven(plan)
        if not reason:
            return None
    return Preflight(mode != "warn", reason, backend, expected, network)


def _ranks_meet(plan: LaunchPlan) -> bool:
    """Whether the ranks have to meet in a way that may fail on one node, too."""
    return plan.program.launcher == "mpi" or (plan.program.launcher == "env" and bool(plan.placement.partition))
