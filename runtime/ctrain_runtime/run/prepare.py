"""From a request to a launch, for every verb that starts runs: scheduler and engine are asked first, and answer while
what plans the run is imported. Both take as long, on a quiet cluster: start-up is measured."""

from __future__ import annotations

import functools

from ctrain_runtime import schedulers
from ctrain_runtime.base import background
from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.run import site_engine
from ctrain_runtime.run.request import Prepared, Request
from ctrain_runtime.site.select import FALLBACK


def prepare(request: Request) -> Prepared:
    """Plan a run. Starts nothing, and leaves nothing but a pulled image in the cache and the run's empty directory, in
    a dry run not even these. Raises CtrainError."""
    _check_detected(request)
    site = request.site.site
    scheduler = schedulers.get(site.scheduler)
    cluster = background.start(functools.partial(scheduler.facts, site))
    engine = background.start(functools.partial(site_engine.find, site, dry_run=request.dry_run))

    from ctrain_runtime.run.plan_request import plan_request

    return plan_request(request, scheduler, cluster.result, engine.result)


def _check_detected(request: Request) -> None:
    """Refuse to train on a login node by mistake: a cluster whose commands are not on PATH looks like a laptop."""
    options = request.options
    if request.site.explicit or request.site.site.name != FALLBACK:
        return
    if (options.nodes or 1) > 1 or options.time or options.partition:
        raise SchedulerError(
            "no scheduler found on this machine, but --nodes, --time or --partition need a cluster",
            "Load the scheduler's module, or run on this machine with --site local",
        )
