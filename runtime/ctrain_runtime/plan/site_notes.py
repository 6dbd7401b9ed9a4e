"""What a site's file says of a run that its user should know: what is unproven, and limits that no job shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ctrain_runtime.base.text import pluralize
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.plan import binding
from ctrain_runtime.plan.environment import unknown_conditions
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.site.model import Site


def notes(plan: LaunchPlan, site: Site, cluster: Cluster, software: Mapping[str, str]) -> tuple[str, ...]:
    """Lines for the user; `software` is that of the image's manifest."""
    across = plan.crosses_network
    conditions = unknown_conditions(site, software) if across and (plan.image.cuda or plan.image.rocm) else ()
    own = (site.notes.always, site.notes.multinode if across else "")
    lines = (*(f"site {site.name}: {text}" for text in own if text), binding.note(plan, site))
    return (*filter(None, lines), *conditions, *_jobs(plan, cluster), *_memory(plan))


def _jobs(plan: LaunchPlan, cluster: Cluster) -> tuple[str, ...]:
    """How many jobs a user may have in the partition, where the site says so."""
    part = next((part for part in cluster.partitions if part.name == plan.placement.partition), None)
    if not part or plan.placement.allocation or not (part.max_running or part.max_submitted):
        return ()
    limits = ((part.max_running, "can run at a time"), (part.max_submitted, "can run or wait"))
    (most, what), *more = ((most, what) for most, what in limits if most)
    texts = (f"{pluralize(most, 'job')} of yours {what}", *(f"{most} {what}" for most, what in more))
    return (f"partition {part.name}: {', '.join(texts)}",)


def _memory(plan: LaunchPlan) -> tuple[str, ...]:
    settings = plan.placement.settings
    if "memory" not in plan.placement.not_requested or "mem" not in settings:
        return ()
    return (f"--mem {settings['mem']}: by its documentation, site {plan.site} takes no requests for memory",)
