"""Picks up runs that another process started, from their directories."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Optional

from ctrain_runtime import schedulers
from ctrain_runtime.base import run_files
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import CtrainError, DataError, SchedulerError
from ctrain_runtime.run import directory, events, record, requeues
from ctrain_runtime.run.conclude import Conclusion, conclude, is_undisturbed
from ctrain_runtime.run.record import Record
from ctrain_runtime.run.submit import Run, submission_lock, with_job
from ctrain_runtime.schedulers.protocol import Outcome, Status

SUBMISSION_SECONDS = 600  # after which a job that the scheduler does not know was not submitted


def pick_up(path: Path) -> Run:
    """The run in a directory. A job that its record lacks is looked up in its events, then in the scheduler's queue.

    Raises CtrainError.
    """
    if _is_foreign(path):  # its plan names a file to remove and a job to cancel, with the caller's permissions
        raise DataError(f"run {path} belongs to another user", "List your runs with: ctrain runs")
    plan = directory.load_launch(path).plan
    run = Run(plan, record.load(path), schedulers.get(plan.scheduler))
    if run.record.exit:
        if run.record.doubtful and not _is_same(path, run.path):  # its files are elsewhere: they correct nothing
            return dataclasses.replace(run, record=dataclasses.replace(run.record, doubtful=False))
        return run
    if not _is_same(path, run.path):
        raise DataError(f"run directory {path} was moved or copied from {run.path}", "Move it back until the run ends")
    if run.record.attempts:
        return requeues.followed(run)
    try:
        job_id = _lost_job(run)
    except SchedulerError as error:
        return dataclasses.replace(run, unknown=str(error))
    if job_id is None:
        certain = f"{SUBMISSION_SECONDS // 60} minutes after the submission that is certain"
        note = f"the scheduler knows no job of this run; {certain}. Retry later"
        return dataclasses.replace(run, unknown=note)
    return with_job(run, job_id) if job_id else run


def refresh(run: Run) -> tuple[Status, Optional[Conclusion]]:
    """The state of a run now, and its conclusion if its job has ended."""
    if run.record.exit:
        return Status("ended"), conclude(run, _concluded(run.record)) if run.record.doubtful else Conclusion(run.record)
    status = current_status(run)
    return status, conclude(run, status) if status.phase == "ended" else None


def _concluded(concluded: Record) -> Status:
    """The scheduler's last answer, as in the record of a run. An outcome without its word was ctrain's conclusion."""
    if not concluded.attempts:
        return Status("ended", outcome=Outcome.NEVER_STARTED)
    last = concluded.attempts[-1]
    return Status("ended", last.word, Outcome(last.outcome) if last.word else Outcome.UNKNOWN)


def current_status(run: Run) -> Status:
    """The state of a run that is not concluded."""
    if not run.job_id:
        return Status("unknown", note=run.unknown) if run.unknown else Status("ended", outcome=Outcome.NEVER_STARTED)
    run = requeues.followed(run)
    job = events.read_job_events(run.path)
    code = events.end_code(job)
    if code == 0 and is_undisturbed(run):
        return Status("ended")
    status = requeues.ask(run)
    if code is not None and status.phase != "unknown":  # else only its own cluster knows why
        return status if status.phase == "ended" else Status("ended")
    return status


def require_known(status: Status) -> None:
    """Raise SchedulerError if nothing can be known of a job here: it is neither watched nor cancelled."""
    if status.phase == "unknown":
        raise SchedulerError(status.note)


def find_run(reference: str, *parents: Path) -> Path:
    """The directory of RUN: a name below one of `parents`, a path, `last`, or a job as it is printed. Raises
    DataError."""
    if reference == directory.LAST:
        newest = next(list_runs(*parents), None)
        if newest is None:
            raise DataError(f"no runs in {list_parents(parents)}", "Name the parent directory of runs with --runs DIR")
        return newest
    path = Path(reference)
    if _is_run(path):
        return path.resolve()
    named = [parent / reference for parent in parents if "/" not in reference and _is_run(parent / reference)]
    if len(named) > 1:
        raise DataError(
            f"run {reference!r} is in {', '.join(str(run.parent) for run in named)}", "Name one by its path"
        )
    jobs = [] if named else [run for run in list_runs(*parents) if _had_job(run, reference)]
    if len(jobs) > 1:  # of other clusters, or after the scheduler began to count anew
        runs = ", ".join(run.name for run in jobs)
        raise DataError(f"job {reference} is of several runs: {runs}", "Name one of them")
    for candidate in (*named, *jobs):
        return candidate.resolve()
    names = [run.name for run in list_runs(*parents)]
    hint = suggest(reference, names) or "List runs with: ctrain runs"
    raise DataError(f"run {reference!r} not found in {list_parents(parents)}", hint)


def list_runs(*parents: Path) -> Iterator[Path]:
    """The caller's run directories in `parents`, newest first. Raises DataError if one cannot be read."""
    candidates: list[Path] = []
    for parent in parents:
        try:
            candidates += [path for path in parent.iterdir() if _is_run(path) and not _is_foreign(path)]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DataError(f"cannot read {parent}: {error.strerror}") from error
    yield from sorted(candidates, key=_created, reverse=True)


def list_parents(parents: Sequence[Path]) -> str:
    """The first of them, the site's, and how many others there are."""
    first, *others = parents
    if len(others) < 2:
        return ", ".join(map(str, parents))
    return f"{first} and {len(others)} other directories of runs"


def _had_job(path: Path, job: str) -> bool:
    """By its id, its name for users, or the number in that: HOST:4711:0, process 4711, 4711."""
    try:
        attempts = record.load(path).attempts
        return any(job in (made.job_id, made.name, made.name.rpartition(" ")[2]) for made in attempts)
    except CtrainError:  # a record that cannot be read names no job
        return False


def _created(path: Path) -> float:
    try:
        return (path / run_files.PLAN).stat().st_mtime
    except OSError:  # removed meanwhile
        return 0


def _is_run(path: Path) -> bool:
    return os.path.isfile(path / run_files.PLAN)  # noqa: PTH113  # Path.is_file raises for other users' directories


def _is_foreign(path: Path) -> bool:
    try:
        return path.stat().st_uid != os.geteuid()
    except OSError:
        return False


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _lost_job(run: Run) -> Optional[str]:
    """The id of a job whose submitter was killed before it recorded the id; "" if none was submitted, None if one may
    have been."""
    try:
        with submission_lock(run.path) as descriptor:  # sbatch may still be running
            if os.pread(descriptor, len(run_files.PREPARING), 0) == run_files.PREPARING:
                return ""  # older ctrains leave the file empty: then nothing is known
            recorded = events.job_id(events.read_job_events(run.path))
            return recorded or run.scheduler.find(run.plan) or (None if _may_be_accepted(run) else "")
    except OSError as error:
        raise CtrainError(f"cannot read {run.path}: {error.strerror}") from error


def _may_be_accepted(run: Run) -> bool:
    """Whether a submission without an answer may still be: by a scheduler that is busy or starts anew."""
    age = time.time() - datetime.fromisoformat(run.record.created).timestamp()
    return run.plan.placement.is_queued and age < SUBMISSION_SECONDS
