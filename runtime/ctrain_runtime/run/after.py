"""The run after which another one starts (--after): a job that is in the same queue, unless it has completed."""

from __future__ import annotations

from pathlib import Path

from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.errors import ResourceError, SchedulerError
from ctrain_runtime.run.pick_up import pick_up, refresh, require_known
from ctrain_runtime.schedulers.protocol import Scheduler
from ctrain_runtime.site.model import Site


def job_to_wait_for(
    path: Path, site: Site, scheduler: Scheduler, cluster: Cluster, *, any_end: bool = False
) -> tuple[str, str]:
    """The id of the job of the run in `path`, "" if it has completed; and a note. Raises ResourceError if the run has
    ended otherwise, SchedulerError if no queue can hold the new job back until then.

    `any_end`: the run may end anyhow, and where there is no queue job.sh waits for its process.
    """
    run = pick_up(path)
    status, conclusion = refresh(run)
    require_known(status)
    ended = conclusion.record.exit if conclusion else None
    if ended and any_end:
        return "", ""
    if ended and ended.code == 0:
        return "", f"run {run.plan.run} has completed: --after waits for nothing"
    if ended:
        problem = f"run {run.plan.run} has not completed, but ended: {ended.reason}"
        raise ResourceError(problem, "Leave out --after, or name another run")
    has_queue = bool(scheduler.programs) and not cluster.allocation
    if not has_queue and not any_end:
        queue = "inside an allocation runs start" if cluster.allocation else f"runs of site {site.name} start"
        raise SchedulerError(f"{queue} at once: --after needs a queue", f"Run: ctrain wait {path} && ctrain run ...")
    of_other = run.plan.placement.cluster and cluster.name and run.plan.placement.cluster != cluster.name
    inside = bool(run.plan.placement.allocation) != bool(cluster.allocation)
    if run.plan.scheduler != site.scheduler or inside or of_other or (status.note and not has_queue):
        problem = f"{run.job_name} of run {run.plan.run} is not in the queue of site {site.name}"
        raise SchedulerError(problem, f"Run: ctrain wait {path} && ctrain run ...")
    if any_end:
        return run.job_id, f"starts once run {run.plan.run} ({run.job_name}) has ended"
    return run.job_id, f"starts once run {run.plan.run} ({run.job_name}) has ended with exit code 0"
