"""Jobs of a run that were queued again, by what job.sh has written; retries.bash decides."""

from __future__ import annotations

from typing import Optional

from ctrain_runtime.run import events, record
from ctrain_runtime.run.events import Event
from ctrain_runtime.run.record import Attempt, Record, Restart
from ctrain_runtime.run.submit import Run, with_job
from ctrain_runtime.schedulers.protocol import Scheduler, Status

REQUEUED, NOT_REQUEUED, CONTINUED, LEFT_OUT = "requeued", "not requeued", "continued", "left out"
OUTCOME = "requeued"  # of a job that is not the run's last
UNKNOWN = "job.sh was killed: a node failed, or the scheduler made way for another job"


def cause(job: list[Event]) -> Optional[str]:
    """Why a job is queued again, by its last events; None if it is not, as far as job.sh knows."""
    decisions = [event for event in job if event.what in (REQUEUED, NOT_REQUEUED)]
    return decisions[-1].message if decisions and decisions[-1].what == REQUEUED else None


def not_requeued(job: list[Event]) -> str:
    """The end of a reason: why the job is not queued once more; "" where that was not in question."""
    return next((f"; {event.message}" for event in reversed(job) if event.what == NOT_REQUEUED), "")


def followed(run: Run) -> Run:
    """The run with its newest job: a scheduler may give a job that is queued again another number."""
    if not run.plan.program.is_requeued or run.record.exit:
        return run
    named = [event.job for event in events.read_all_job_events(run.path) if event.job]
    return with_job(run, named[-1]) if named and run.job_id and named[-1] != run.job_id else run


def ask(run: Run) -> Status:
    """The scheduler's answer on the run's newest job. Meanwhile that job may have been queued again under another
    number: then its end is not the run's."""
    run = followed(run)
    answer = run.scheduler.status(run.job_id, run.plan)
    return status(events.read_job_events(run.path), answer) if followed(run) == run else Status("waiting")


def status(job: list[Event], answer: Status) -> Status:
    """The scheduler's answer. A job that is to be queued again may still be ending: it does not run any more."""
    why = cause(job)
    return (
        Status("waiting", f"queued again: {why}") if why and answer.phase == "running" and not answer.note else answer
    )


def of_event(before: list[Event], event: Event, run: Run) -> Restart:
    """The restart that a job's `continued` event tells of; `before` are the events up to it."""
    starts = [at for at, earlier in enumerate(before) if events.is_start(earlier)]
    last = before[starts[-2] : starts[-1]] if len(starts) > 1 else []
    name = run.scheduler.name(last[0].job) if last and last[0].job else run.job_name
    nodes = "".join(f", without {event.message}" for event in last if event.what == LEFT_OUT)
    reason = f"{name} was queued again{nodes}: {cause(last) or UNKNOWN}"
    return Restart(event.attempt, record.iso(event.time or 0.0), reason, 0, event.message, requeued=True)


def jobs(begun: Record, every: list[Event], scheduler: Scheduler) -> tuple[Attempt, ...]:
    """The jobs of a run, by all events of job.sh; only of the last one it is open how it ends."""
    if not begun.attempts:
        return ()
    submitted, made = begun.attempts[0], list[Attempt]()
    starts = [at for at, event in enumerate(every) if events.is_start(event)]
    for begin, end in zip(starts, [*starts[1:], len(every)]):
        job, why = every[begin:end], cause(every[begin:end])
        times = [record.iso(event.time) for event in job if event.time]
        this = Attempt(
            job[0].job or submitted.job_id,
            scheduler.name(job[0].job) if job[0].job else submitted.name,
            made[-1].end or made[-1].start or submitted.submitted if made else submitted.submitted,
            start=times[0] if times else None,
            cluster=submitted.cluster,
        )
        if end < len(every) or why:
            known = times[-1] if why and times else None  # when a lost one ended is unknown
            this = Attempt(**{**vars(this), "end": known, "outcome": OUTCOME, "word": why or UNKNOWN})
        made.append(this)
    if not made or made[-1].outcome:  # the next one has not started
        again = made[-1].end or made[-1].start or submitted.submitted if made else submitted.submitted
        made.append(Attempt(begun.attempts[-1].job_id, begun.attempts[-1].name, again, cluster=submitted.cluster))
    return tuple(made)
