"""What the options and the job name, as files and earlier runs. Modules are imported where one is named: start-up is
measured."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from ctrain_runtime import schedulers
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.errors import CtrainError, JobError
from ctrain_runtime.images import trust, user_layer
from ctrain_runtime.images.image import Image
from ctrain_runtime.job import Job
from ctrain_runtime.plan.model import CodeCopy, Inputs
from ctrain_runtime.run import directory, notify, parent_directories
from ctrain_runtime.run.request import Request


def read(
    request: Request, planned: Job, flat: Optional[Image], parent: Path, cluster: Cluster
) -> tuple[Inputs, tuple[str, ...]]:
    """The inputs of a plan, and notes. `flat` can take the image's place; `parent` is where runs are. Raises
    CtrainError."""
    options = request.options
    resumed = _resumed(options.resume, parent) if options.resume else None
    job_id, waits = _waited_for(request, parent, cluster) if options.after else ("", "")
    inputs = Inputs(
        flat=flat,
        layers=_layers(request, planned),
        resume=str(directory.checkpoint_of(resumed)) if resumed else "",
        code=_code(request, planned),
        after=job_id,
        after_any=bool(job_id) and request.after_any,
        notify=notify.notifier(request.site.site.notify),
    )
    return inputs, (*(_resume_notes(resumed) if resumed else ()), *filter(None, (waits,)))


def _layers(request: Request, planned: Job) -> tuple[user_layer.UserLayer, ...]:
    """The user layers of job and command line. Raises JobError, and all that reading and trusting one raises."""
    for path in planned.layers:
        if not path.exists():
            raise JobError(f"{planned.where}: layers: {path} not found", "Build it with: ctrain layer build")
    layers = tuple(map(user_layer.read, (*planned.layers, *map(Path, request.options.layers))))
    for layer in layers:
        trust.require_trusted_layer(layer, request.site.site)
    return layers


def _code(request: Request, planned: Job) -> Optional[CodeCopy]:
    """What of a directory job is copied; None for all other jobs. Raises JobError."""
    if request.given:
        return request.code
    if not (planned.file and planned.directory) or request.options.live:
        return None
    from ctrain_runtime.run import code_copy

    return code_copy.survey(planned.directory)


def _waited_for(request: Request, parent: Path, cluster: Cluster) -> tuple[str, str]:
    """The job of --after, and a note on it; each "" if the run has ended as it must."""
    from ctrain_runtime.run import after, pick_up

    path = pick_up.find_run(request.options.after, *parent_directories.with_remembered(parent))
    site = request.site.site
    scheduler = schedulers.get(site.scheduler)
    return after.job_to_wait_for(path, site, scheduler, cluster, any_end=request.after_any)


def _resumed(reference: str, parent: Path) -> Path:
    """The run directory of --resume: RUN as everywhere, or one of which only the checkpoint is left."""
    from ctrain_runtime.run.pick_up import find_run

    kept = next((path for path in (Path(reference), parent / reference) if path.is_dir()), None)
    if kept or "/" in reference:
        return kept or Path(reference)
    return find_run(reference, *parent_directories.with_remembered(parent))


def _resume_notes(run: Path) -> tuple[str, ...]:
    """A line for a run that was done: what resumes it has nothing left to do, and ends as if it had trained."""
    from ctrain_runtime.run import record
    from ctrain_runtime.run.ending import Ending

    try:
        ended = record.load(run).exit
    except CtrainError:  # a checkpoint without a record, or with one of an older ctrain
        return ()
    done = f"run {run.name} has completed: resumed, it ends at once unless it is to train longer"
    return (done,) if ended and ended.ending is Ending.COMPLETED else ()
