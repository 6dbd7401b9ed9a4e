"""Restarts of a run's program in its job, by what job.sh and the ranks have written; restarts.bash decides."""

from __future__ import annotations

import re
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.run import events, hangs, memory, ranks, record, requeues
from ctrain_runtime.run.events import Event
from ctrain_runtime.run.follow import read_text
from ctrain_runtime.run.ranks import KILLED, Rank
from ctrain_runtime.run.record import Restart
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Status

RESTARTED, NOT_RESTARTED = "restarted", "not restarted"
MARK = re.compile(r"\n--- attempt ([0-9]{1,9}) ---\n")  # in logs, by mark_attempt


def find(run: Run) -> tuple[Restart, ...]:
    """The restarts of a run so far, each with the rank that failed first before it, or why its job was queued again."""
    every = events.read_all_job_events(run.path)
    return tuple(
        _restart(run, event) if event.what == RESTARTED else requeues.of_event(every[:at], event, run)
        for at, event in enumerate(every)
        if event.what in (RESTARTED, requeues.CONTINUED)
    )


def not_restarted(job: list[Event]) -> str:
    """The end of a reason: why the program was not restarted once more; "" where that was not in question."""
    return next((f"; {event.message}" for event in job if event.what == NOT_RESTARTED), "")


def of_last_attempt(lines: list[str]) -> list[str]:
    """Those lines of a log that the last attempt has written."""
    begin = max((number for number, line in enumerate(lines, 1) if MARK.fullmatch(f"\n{line}\n")), default=0)
    return lines[begin:]


def job_logs(run: Run) -> list[str]:
    """The job's log, attempt by attempt; at least one."""
    return MARK.split(read_text(run.path / run_files.JOB_LOG))[::2]


def first_failure(run: Run, started: list[Rank], job_log: str) -> Optional[Rank]:
    """The rank that failed first: the one whose task the job's log names first, if that rank vanished."""
    vanished = {rank.number: rank for rank in started if rank.exit_code is None}
    named = run.scheduler.failed_task(job_log) if vanished and run.plan.tasks == run.plan.recorded_ranks else None
    return vanished.get(named.task) if named and named.task in vanished else ranks.first_failure(started)


def _lost_with_its_node(started: list[Rank], event: Event) -> Optional[Rank]:
    """The first rank without an end on a node that the next attempt does without: others failed because of it."""
    left_out = event.message.partition(", without ")[2].split(",")
    return next((rank for rank in started if rank.exit_code is None and rank.host in left_out), None)


def left_before(run: Run, started: list[Rank], failed: Rank) -> str:
    """The end of a reason: which rank had left before one that failed; "" if none had."""
    early = ranks.ended_before(started, failed)
    return f"; {run.plan.describe(early.number, early.host)} had ended before with exit code 0" if early else ""


def _restart(run: Run, event: Event) -> Restart:
    before = events.of_attempt(events.read_all_node_events(run.path), event.attempt - 1)
    logs = job_logs(run)
    started = ranks.from_events(before)
    log = logs[min(event.attempt, len(logs)) - 1]
    failed = _lost_with_its_node(started, event) or first_failure(run, started, log)
    starved = memory.shortage(run.plan, started, failed, Status("running"), run.scheduler.out_of_memory(log))
    hung = hangs.given_up(events.read_job_events(run.path), event.attempt - 1)
    code, reason = event.code or 1, f"the job's step failed: exit code {event.code}"
    if hung:
        reason = hung
    elif starved:
        code, reason = KILLED, starved.reason
    elif failed:
        code = failed.exit_code or code
        reason = f"{run.plan.describe(failed.number, failed.host)} failed: {failed.exit_description()}"
        reason += left_before(run, started, failed)
    return Restart(event.attempt, record.iso(event.time or 0.0), reason, code, event.message)
