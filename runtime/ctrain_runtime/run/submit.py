"""Submits a run: creates its directory and submits its job. From then on the run does not depend on this process."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime import schedulers
from ctrain_runtime.base import run_files
from ctrain_runtime.errors import CtrainError, UnansweredSubmission
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.run import directory, manifest, parent_directories, record, revision
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.record import Attempt, Exit, Record
from ctrain_runtime.schedulers.protocol import Scheduler
from ctrain_runtime.store import lease


@dataclass(frozen=True)
class Run:
    """A submitted run: its plan, its record so far, and its scheduler. `unknown` is why its job could not be looked up,
    if its record has none."""

    plan: LaunchPlan
    record: Record
    scheduler: Scheduler
    unknown: str = ""

    @property
    def path(self) -> Path:
        return Path(self.plan.run_directory)

    @property
    def job_id(self) -> str:
        """The id of its last job; "" if none was submitted."""
        return self.record.attempts[-1].job_id if self.record.attempts else ""

    @property
    def job_name(self) -> str:
        return self.record.attempts[-1].name if self.record.attempts else "the job"


def submit(launch: Launch) -> Run:
    """Submit `launch`. Raises CtrainError, after recording it as the reason why the run never started; without an
    answer to the submission the run stays open, with the lease on its image, until its job is looked up."""
    plan = launch.plan
    scheduler = schedulers.get(plan.scheduler)
    try:
        scheduler.check(launch)
    except CtrainError:
        directory.release(plan)
        raise
    path = directory.create(launch)
    parent_directories.remember(path.parent)
    begun = record.begin(plan)
    difference = revision.uncommitted(plan.program.workdir) if begun.revision else ""
    begun = dataclasses.replace(begun, uncommitted=bool(difference))
    try:
        if difference:
            (path / run_files.CODE_DIFF).write_text(difference, encoding="utf-8", errors="surrogateescape")
        directory.write_json(path / run_files.MANIFEST, dataclasses.asdict(manifest.make(plan)))
        record.save(begun)
    except OSError as error:
        raise directory.discard(path, error) from error
    with submission_lock(path) as descriptor:
        directory.write_plan(launch)  # whoever sees the run now waits for the lock
        _mark(path, descriptor)
        lease.acquire(plan.image.lease, plan.run_directory)
        try:
            return with_job(Run(plan, begun, scheduler), scheduler.submit(launch, (descriptor,)))
        except UnansweredSubmission:
            raise
        except CtrainError as error:
            lease.release(plan.image.lease)
            ended = Exit(error.exit_code, error.message, "ctrain", Ending.NEVER_STARTED)
            record.save(dataclasses.replace(begun, end=record.iso(time.time()), exit=ended))
            raise


def _mark(path: Path, descriptor: int) -> None:
    """Note in the file of the lock that there may be a job from here on. Raises CtrainError, leaving nothing."""
    try:
        os.pwrite(descriptor, run_files.SUBMITTING, 0)
    except OSError as error:
        raise directory.discard(path, error) from error


def with_job(run: Run, job_id: str) -> Run:
    """The run with its job, which is added to its record; on a full disk, only the job's events have it."""
    attempt = Attempt(job_id, run.scheduler.name(job_id), record.iso(time.time()), cluster=run.plan.placement.cluster)
    changed = dataclasses.replace(run.record, attempts=(*run.record.attempts, attempt))
    with contextlib.suppress(OSError):
        record.save(changed)
    return dataclasses.replace(run, record=changed)


@contextlib.contextmanager
def submission_lock(run: Path) -> Iterator[int]:
    """Hold the lock of a run's submission; yields its descriptor, which the submitting process inherits.

    A process that picks up a run without a job id waits for the lock: after ctrain is killed, sbatch may still run.
    """
    descriptor = os.open(run / run_files.SUBMIT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: then only the events have the id
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
