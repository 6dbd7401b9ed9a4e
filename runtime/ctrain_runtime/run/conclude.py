"""How a run ended, by its events, its ranks and the scheduler. The result does not depend on who asks, and when."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import CANCELLED, CtrainError, HangError, WorldError
from ctrain_runtime.payload.ctrain_program import EXIT_SAVED
from ctrain_runtime.run import (
    events,
    hangs,
    notify,
    preflight_results,
    ranks,
    record,
    requeues,
    restarts,
    shared_files,
    world,
)
from ctrain_runtime.run.ending import EARLY, FROM_OUTSIDE, TERMINATED, Ending, Interruption, cut_short, interruption
from ctrain_runtime.run.events import Event
from ctrain_runtime.run.follow import read_text
from ctrain_runtime.run.measured import measure
from ctrain_runtime.run.memory import Shortage, shortage
from ctrain_runtime.run.ranks import Rank
from ctrain_runtime.run.record import Exit, Record, Restart
from ctrain_runtime.run.submit import Run
from ctrain_runtime.run.world import World
from ctrain_runtime.schedulers.protocol import Outcome, Status
from ctrain_runtime.store import lease

OUTCOME_POLL_SECONDS = 1.0
OUTCOME_TIMEOUT_SECONDS = 15.0
NODES_NAMED = 3  # at most, of those that failed
PREFIX = "ctrain: "  # of error lines of ctrain's own scripts
FULL_BYTES = 1 << 16  # less free space than this: the disk is full
CANCELLED_BY_CTRAIN = Exit(CANCELLED, "cancelled", "user", Ending.CANCELLED)


@dataclass(frozen=True)
class Conclusion:
    """The record of an ended run, the rank that failed first, if one did, what became of how many `others`, and why the
    record could not be saved."""

    record: Record
    failed: Optional[Rank] = None
    unsaved: str = ""
    others: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class _Evidence:
    code: Optional[int]  # recorded by job.sh as its last act
    started: float
    ended: float
    ranks: list[Rank]
    status: Status
    cancelled: bool
    preflight: tuple[str, ...]  # what it has measured, and why it has failed
    world: World
    wrong_world: str  # why the scan of the nodes has stopped the run
    interruption: Optional[Interruption]  # of its programs
    cut_short: list[Rank]  # had no time to end after SIGTERM
    restarts: tuple[Restart, ...]
    hang: str  # that had not ended; "" without one
    given_up: str  # why it was ended as one that hangs
    not_restarted: str  # "; " and why the program was not restarted once more, or ""
    not_requeued: str  # the same of its job
    signalled: Optional[float]  # when SIGTERM reached job.sh
    doubtful: bool  # something is missing that may only not be visible here yet


def conclude(run: Run, status: Status) -> Conclusion:
    """Determine how a run ended whose job is gone; record it, and release its image. A run that was concluded with
    doubts is concluded again."""
    run = requeues.followed(run)
    status = _final_status(run, status)
    evidence = _evidence(run, status)
    if evidence.code is None and run.job_id and not run.record.exit:
        with contextlib.suppress(CtrainError):  # job.sh was killed: its tasks may still be running
            run.scheduler.cancel(run.job_id, run.plan)
    failed = (
        _first_failure(run, evidence)
        if evidence.code != 0 and not evidence.wrong_world and not evidence.given_up
        else None
    )
    short = _shortage(run, evidence, failed)
    failed = short.rank if short else failed
    ended = _hung(run, evidence, _cut_short(run, evidence, _exit(run, evidence, failed, short)))
    if ended.code != 0:
        ended = dataclasses.replace(ended, reason=f"{ended.reason}{evidence.not_requeued}")
    changed = _record(run, evidence, ended)
    if run.plan.checks.estimate:
        changed = dataclasses.replace(changed, measured=measure(run.path / run_files.METRICS))
    lease.release(run.plan.image.lease)
    notify.tell_of_end(run.plan, changed)
    preflight_results.remember(run.plan, events.read_job_events(run.path))
    unsaved = ""
    try:
        record.save(changed)
    except OSError as error:  # on a full disk the record stays open; the next command on the run retries
        unsaved = error.strerror or str(error)
    has_failed = ended.by in ("program", "ctrain") and ended.code != 0 and ended.ending is not Ending.SAVED_AND_LEFT
    blamed = failed if has_failed else None
    others = ranks.fates(evidence.ranks, blamed, run.plan.recorded_ranks) if blamed else ()
    return Conclusion(changed, blamed, unsaved, others)


def _final_status(run: Run, status: Status) -> Status:
    """The scheduler's final status, which may come a moment after the job's last act.

    Only the scheduler shows what ended a job from outside. A job that has succeeded, and that no signal has reached,
    need not wait for it.
    """
    is_final = status.outcome and not status.provisional
    if is_final or not run.job_id or is_undisturbed(run):
        return status
    deadline = time.monotonic() + OUTCOME_TIMEOUT_SECONDS
    while True:
        last = run.scheduler.status(run.job_id, run.plan)
        late = time.monotonic() >= deadline  # an epilog, or the delivery of output, can take minutes
        if last.phase == "ended" and (late or not last.provisional):
            return last
        if late:
            return dataclasses.replace(status, word=last.word)
        time.sleep(OUTCOME_POLL_SECONDS)


def is_undisturbed(run: Run) -> bool:
    """Whether job.sh has recorded success, and no signal had reached the run: the scheduler need not be asked."""
    job = events.read_job_events(run.path)
    return events.end_code(job) == 0 and not _interruption(run, job, events.read_node_events(run.path))


def _interruption(run: Run, job: list[Event], nodes: list[Event]) -> Optional[Interruption]:
    """What has interrupted the run's programs. Of a job that may be queued again, job.sh has judged whether its program
    has left because of the warning before the time limit."""
    cause = interruption(job, nodes, run.plan.recorded_ranks)
    is_judged = run.plan.program.is_requeued and not requeues.not_requeued(job)
    return None if cause and cause.signal != "TERM" and is_judged else cause


def _evidence(run: Run, status: Status) -> _Evidence:
    cancelled = (run.path / run_files.CANCELLED).exists()
    waits = status.outcome in (Outcome.COMPLETED, Outcome.FAILED, Outcome.UNKNOWN, None) and not cancelled
    is_first = run.record.exit is None
    seen = shared_files.read_evidence(run.path, run.plan, wait=is_first and waits and bool(run.job_id))
    job, node_events = seen.job, seen.nodes
    doubtful = waits and not seen.complete and _may_be_hidden(run)
    all_ranks = ranks.from_events(node_events)
    times = _times(job)
    starts = [rank.start for rank in all_ranks if rank.start]
    return _Evidence(
        events.end_code(job),
        min((*starts, *_times(events.read_all_job_events(run.path))), default=0.0),
        max(times) if events.end_code(job) is not None and times else _recorded_end(run) or time.time(),
        all_ranks,
        status,
        cancelled,
        preflight_results.messages(node_events),
        world.certify(run.plan, node_events),
        world.verdict(node_events),
        _interruption(run, job, node_events),
        cut_short(node_events),
        restarts.find(run),
        hangs.of_attempt(job),
        hangs.given_up(job),
        restarts.not_restarted(job),
        requeues.not_requeued(job),
        next((event.time or 0.0 for event in job if event.what == "signalled" and event.signal == "TERM"), None),
        doubtful,
    )


def _times(job: list[Event]) -> list[float]:
    return [event.time for event in job if event.time and event.stage != "queue"]


def _may_be_hidden(run: Run) -> bool:
    """Whether what is missing may be in caches: not if the run was concluded longer ago than these live."""
    end = _recorded_end(run)
    age = time.time() - end if end else 0
    return age < shared_files.CACHE_SECONDS and shared_files.has_caches(run.path)


def _recorded_end(run: Run) -> Optional[float]:
    """When the run had ended, if it was concluded before: looking again does not make it longer."""
    return datetime.fromisoformat(run.record.end).timestamp() if run.record.end else None


def _exit(run: Run, seen: _Evidence, failed: Optional[Rank], short: Optional[Shortage]) -> Exit:
    """The exit of a run: its cause. Causes come before their consequences."""
    outcome = seen.status.outcome
    if seen.code == 0 or (seen.code is None and outcome is Outcome.COMPLETED):
        return _early_end(seen) if seen.interruption else _full_end(run, seen)
    if seen.cancelled:
        return CANCELLED_BY_CTRAIN
    if short:
        own = short.rank.exit_code if short.rank else None
        by = "program" if short.rank else "scheduler"
        reason = f"{short.reason}{seen.not_restarted}"
        return Exit(own or seen.code or TERMINATED, reason, by, Ending.OUT_OF_MEMORY)
    if outcome in FROM_OUTSIDE:
        return _ended_by_scheduler(seen, outcome)
    if seen.wrong_world:
        return Exit(WorldError.exit_code, seen.wrong_world, "ctrain", Ending.REFUSED)
    if failed and failed.exit_code == EXIT_SAVED:
        return _saved_and_left(run, seen, failed)
    if seen.given_up and seen.code is not None:
        return Exit(HangError.exit_code, f"{seen.given_up}{seen.not_restarted}", "ctrain", Ending.FAILED)
    if _is_from_outside(seen, failed):
        return _interrupted(seen)
    if failed:
        return _failure(run, seen, failed)
    return _silent_end(run, seen)


def _cut_short(run: Run, seen: _Evidence, ended: Exit) -> Exit:
    """`ended`; its reason says so if ranks had no time to save."""
    if not seen.cut_short or ended.ending not in (*EARLY, Ending.SAVED_AND_LEFT):
        return ended
    who = f"{len(seen.cut_short)} of {run.plan.recorded_ranks} {run.plan.unit}s"
    reason = f"{ended.reason}; {who} recorded no end after SIGTERM, or were killed: a checkpoint may be incomplete"
    return dataclasses.replace(ended, reason=reason)


def _hung(run: Run, seen: _Evidence, ended: Exit) -> Exit:
    """`ended`; its reason says so if the run had hung, or if ranks had left long before, for which others may have
    waited."""
    if ended.ending not in EARLY:
        return ended
    left = hangs.left_before(seen.ranks, seen.interruption.time if seen.interruption else None, seen.ended)
    if seen.hang:
        return dataclasses.replace(ended, reason=f"{ended.reason}; it hung: {seen.hang}")
    if left:
        who = run.plan.describe(left[0].number, left[0].host)
        others = f" and {len(left) - 1} more" if left[1:] else ""
        return dataclasses.replace(ended, reason=f"{ended.reason}; {who}{others} had left long before with exit code 0")
    return ended


def _shortage(run: Run, seen: _Evidence, failed: Optional[Rank]) -> Optional[Shortage]:
    """The want of memory that ended a job, unless something else ended it from outside."""
    if (
        seen.code == 0
        or seen.cancelled
        or seen.status.outcome in {*FROM_OUTSIDE} - {Outcome.OUT_OF_MEMORY}
        or seen.wrong_world
    ):
        return None
    return shortage(run.plan, seen.ranks, failed, seen.status, run.scheduler.out_of_memory(_logs(run)))


def _full_end(run: Run, seen: _Evidence) -> Exit:
    """Of a job with exit code 0 that nothing has interrupted."""
    up = ranks.started(seen.ranks)
    if up == run.plan.recorded_ranks or seen.code is None:  # without a code, files may still be in caches of NFS
        return Exit(0, "completed", "program", Ending.COMPLETED)
    return Exit(1, f"only {up} of {run.plan.recorded_ranks} {run.plan.unit}s ever started", "ctrain", Ending.REFUSED)


def _early_end(seen: _Evidence) -> Exit:
    """Of a job with exit code 0 whose program got a signal: it has probably saved, and is not done."""
    if seen.cancelled:
        return CANCELLED_BY_CTRAIN
    outcome = seen.status.outcome
    if outcome in FROM_OUTSIDE:
        return _ended_by_scheduler(seen, outcome)
    if seen.interruption and (seen.interruption.signal != "TERM" or outcome is Outcome.COMPLETED):
        after = f"ended with exit code 0 after SIG{seen.interruption.signal}"
        reason = f"{after}: probably saved, and left before it was done"
        return Exit(TERMINATED, reason, "program", Ending.SAVED_AND_LEFT)
    return _interrupted(seen)


def _saved_and_left(run: Run, seen: _Evidence, left: Rank) -> Exit:
    """Of a program that says so by its exit code. Signals that came later are for the ranks that had not left yet."""
    asked = seen.interruption and (seen.interruption.time or 0.0) <= (left.end or 0.0)
    after = f" after SIG{seen.interruption.signal}" if seen.interruption and asked else ""
    who = run.plan.describe(left.number, left.host)
    reason = f"{who} saved, and left before it was done: exit code {EXIT_SAVED}{after}"
    return Exit(EXIT_SAVED, reason, "program", Ending.SAVED_AND_LEFT)


def _ended_by_scheduler(seen: _Evidence, outcome: Outcome) -> Exit:
    word = f" ({seen.status.word})" if seen.status.word else ""
    lost = _lost_nodes(seen) if outcome is Outcome.NODE_FAILURE else ""
    return Exit(seen.code or TERMINATED, f"{outcome.value}{word}{lost}", "scheduler", FROM_OUTSIDE[outcome])


def _is_from_outside(seen: _Evidence, failed: Optional[Rank]) -> bool:
    """Whether something else than a rank ended a job that has failed: a signal reached job.sh, or it was killed itself,
    and no rank had failed by itself before."""
    by_itself = failed and (failed.refusal or failed.exit_code not in (None, ranks.TERMINATED, ranks.KILLED))
    if seen.signalled is not None:
        return not (failed and by_itself and (failed.end or 0.0) < seen.signalled - ranks.ANSWER_SECONDS)
    return bool(seen.code is None and seen.ranks and not by_itself and seen.status.outcome in (Outcome.UNKNOWN, None))


def _interrupted(seen: _Evidence) -> Exit:
    code, word = seen.code or TERMINATED, f" ({seen.status.word})" if seen.status.word else ""
    if seen.interruption or seen.signalled is not None:
        reason = f"ended from outside by SIGTERM; the scheduler does not name the sender{word}"
        return Exit(code, reason, "scheduler", Ending.INTERRUPTED)
    reason = f"job.sh was killed, and no rank had failed before: why is unknown{word}"
    return Exit(code, reason, "scheduler", Ending.UNKNOWN)


def _lost_nodes(seen: _Evidence) -> str:
    """The nodes whose ranks have not recorded their end, unless that is all of several."""
    lost = ranks.hosts([rank for rank in seen.ranks if rank.exit_code is None])
    if not lost or 1 < len(lost) == len(ranks.hosts(seen.ranks)):
        return ""
    return f": no exit status from {', '.join(lost[:NODES_NAMED])}{', ...' if len(lost) > NODES_NAMED else ''}"


def _first_failure(run: Run, seen: _Evidence) -> Optional[Rank]:
    return restarts.first_failure(run, seen.ranks, _job_log(run))


def _failure(run: Run, seen: _Evidence, failed: Rank) -> Exit:
    who = run.plan.describe(failed.number, failed.host)
    if failed.refusal:
        return Exit(failed.exit_code or 1, f"{who}: {failed.refusal}", "ctrain", Ending.REFUSED)
    how, code = failed.exit_description(), failed.exit_code
    if code is None:
        named = run.scheduler.failed_task(_job_log(run))
        if named and run.plan.tasks == run.plan.recorded_ranks and named.task < run.plan.recorded_ranks:
            who = run.plan.describe(named.task, named.host or failed.host)
            how = f"{named.how} (from the job's log)"
    after = restarts.left_before(run, seen.ranks, failed)
    full = f"; disk full: {run.path}" if _is_full(run) else ""
    reason = f"{who} failed first: {how}{after}{full}{seen.not_restarted}"
    return Exit(code or seen.code or 1, reason, "program", Ending.FAILED)


def _silent_end(run: Run, seen: _Evidence) -> Exit:
    """No rank started, or none could record its end."""
    code = seen.code or 1
    if _is_full(run):
        return Exit(code, f"disk full: {run.path}", "ctrain", Ending.FAILED)
    if not run.job_id:
        return Exit(code, "the job was never submitted", "scheduler", Ending.NEVER_STARTED)
    if seen.status.outcome is Outcome.NEVER_STARTED:
        reason = f": {seen.status.note}" if seen.status.note else ""
        return Exit(code, f"the job never started{reason}", "scheduler", Ending.NEVER_STARTED)
    if not seen.ranks and seen.code is None and not _job_log(run):
        # job.sh writes an event before anything else, if it can.
        problem = f"the job wrote nothing to {run.path}: its nodes may not see that directory"
        reason = f"{problem}. Choose one that all nodes share: --runs DIR"
        return Exit(code, reason, "scheduler", Ending.UNKNOWN)
    word = seen.status.word or (seen.status.outcome.value if seen.status.outcome else "unknown")
    lines = [line.strip() for line in _job_log(run).splitlines() if line.strip()]
    own = [line[len(PREFIX) :] for line in lines if line.startswith(PREFIX)]
    if own:
        return Exit(code, own[-1], "ctrain", Ending.REFUSED)
    ending = Ending.UNKNOWN if seen.code is None else Ending.FAILED
    causes = [line for line in lines if not run.scheduler.is_aftermath(line)]  # the code stands below
    return Exit(code, [f"job ended: {word}", *(causes or lines)][-1], "scheduler", ending)


def _is_full(run: Run) -> bool:
    try:
        return shutil.disk_usage(run.path).free < FULL_BYTES
    except OSError:
        return False


def _job_log(run: Run) -> str:
    return restarts.job_logs(run)[-1]


def _logs(run: Run) -> str:
    """All that the scheduler says of the job."""
    return _job_log(run) + read_text(run.path / run_files.SCHEDULER_LOG)


def _record(run: Run, seen: _Evidence, ended: Exit) -> Record:
    begun = run.record
    start = record.iso(seen.started) if seen.started else None
    end = record.iso(seen.ended)
    attempts = begun.attempts
    if attempts and not begun.exit and run.plan.program.is_requeued:
        attempts = requeues.jobs(begun, events.read_all_job_events(run.path), run.scheduler)
    if attempts:
        outcome = seen.status.outcome.value if seen.status.outcome else ""
        if not outcome or seen.status.outcome is Outcome.UNKNOWN:
            outcome = Outcome.COMPLETED.value if ended.code == 0 else Outcome.FAILED.value
        began = attempts[-1].start or (start if len(attempts) == 1 else None)
        last = dataclasses.replace(attempts[-1], start=began, end=end, outcome=outcome, word=seen.status.word)
        attempts = (*attempts[:-1], last)
    hosts = tuple(ranks.hosts(seen.ranks))
    changed = dataclasses.replace(begun, nodes=hosts, attempts=attempts, start=start, end=end, exit=ended)
    changed = dataclasses.replace(changed, restarts=seen.restarts)
    return dataclasses.replace(changed, preflight=seen.preflight, world=seen.world, doubtful=seen.doubtful)
