"""Watches a run to its end: its files and, less and less often, its scheduler. Calls an observer; prints nothing."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Optional, Protocol

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.run import events, hangs, preflight_results, ranks, requeues, restarts, shared_files
from ctrain_runtime.run.follow import Metrics, Tail
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.pick_up import current_status, require_known
from ctrain_runtime.run.record import Restart
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Status

FILE_POLL_SECONDS = (0.05, 1.0)  # the shortest and the longest pause: short runs end promptly, long ones cost little
SCHEDULER_POLL_SECONDS = (0.5, 30.0)
BACKOFF = 1.5
FILE_BACKOFF = 1.02  # the end of T seconds of silence, as of an import, is seen after T/50 more
COUNT_SHARE = 0.1  # of the time, at most: to count the ranks of many nodes, as many files are read
SILENCE_SECONDS = 10.0  # without any rank or output: then the job's own log may say why
CANCEL_RETRY_SECONDS = 5.0
CANCEL_TIMEOUT_SECONDS = 60.0  # a dead node can keep a job "completing" indefinitely


class RunObserver(Protocol):
    """Is called for everything that happens. It must not raise: output never affects a job."""

    def submitted(self, name: str) -> None: ...
    def status(self, status: Status) -> None: ...
    def ranks(self, started: int, total: int, unit: str) -> None: ...
    def preflight(self, line: str) -> None: ...
    def job_log(self, line: str) -> None: ...
    def output(self, text: str) -> None: ...
    def metrics(self, records: list[dict[str, Any]]) -> None: ...
    def hang(self, line: str) -> None: ...
    def restarted(self, restart: Restart, allowed: int) -> None: ...
    def cancelling(self, name: str) -> None: ...
    def warn(self, line: str) -> None: ...


@dataclass(frozen=True)
class LastLook:
    """Why the watch is over. `status` is the last one known; `job_is_over`: the job was ended or has ended."""

    status: Status
    job_is_over: bool


class Pause:
    """A pause that grows while nothing happens."""

    def __init__(self, bounds: tuple[float, float], backoff: float = BACKOFF) -> None:
        self._shortest, self._longest = bounds
        self._backoff = backoff
        self.reset()

    def reset(self) -> None:
        self.seconds = self._shortest
        self._since = -self._longest

    def due(self, now: float) -> bool:
        """Whether the pause is over; if so, the next one begins, and is longer."""
        if now - self._since < self.seconds:
            return False
        self._since = now
        self.seconds = min(self.seconds * self._backoff, self._longest)
        return True


class EndLook:
    """Whether a run has ended: by its events, and less and less often by its scheduler."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._ask = Pause(SCHEDULER_POLL_SECONDS)
        self._ended = bool(run.record.exit)

    def has_ended(self) -> bool:
        """Look once. Raises SchedulerError if nothing can be known of its job here."""
        if not self._ended and events.end_code(events.read_job_events(self._run.path)) is not None:
            self._ended = True
        elif not self._ended and self._ask.due(time.monotonic()):
            status = current_status(self._run)
            require_known(status)
            self._ended = status.phase == "ended"
        return self._ended


def watch(run: Run, observer: RunObserver, interrupts: Interrupts, last: Optional[int] = None) -> LastLook:
    """Show the run until it has ended, or until a signal asks to leave it. Of its output so far, only the `last` lines
    are shown; None: all."""
    watcher = _Watcher(run, observer, last)
    while True:
        if interrupts.detach:
            return LastLook(watcher.status, job_is_over=False)
        if interrupts.cancel:
            watcher.cancel()
        if watcher.step() or watcher.given_up() or interrupts.leave:
            return LastLook(watcher.status, watcher.job_is_over)
        interrupts.wait(watcher.pause.seconds)


class _Watcher:
    """One pass after the other over what a run shows of itself."""

    def __init__(self, run: Run, observer: RunObserver, last: Optional[int]) -> None:
        self._run, self._observer = run, observer
        self._first_log = run.path / run_files.rank_log(0, 0, run.plan.recorded_ranks)
        self._log = Tail(self._first_log)
        if last is not None:
            self._log.skip_to_last(last)
        self._metrics = Metrics(run.path / run_files.METRICS)
        self._job_log = Tail(run.path / run_files.JOB_LOG)
        self.pause = Pause(FILE_POLL_SECONDS, FILE_BACKOFF)
        self._ask = Pause(SCHEDULER_POLL_SECONDS)
        self.status = Status("waiting")
        self.job_is_over = False
        self._started = 0.0  # when the job was first seen to run since it was last queued
        self._starts = 0  # of job.sh, as shown
        self._up: dict[Path, int] = {}  # ranks that have started, by the file of their node
        self._count_at = 0.0  # when to count them next
        self._preflight: set[str] = set()  # messages of the preflight that were shown
        self._output_seen = False
        self._attempt = 0
        self._hangs: Optional[int] = (
            0 if last is None else None
        )  # lines of hangs that were shown; None: of those before
        self._cancel_asked = 0.0  # when the user first asked
        self._cancel_tried = 0.0
        self._cancelled = False  # the scheduler took it
        self._refusal = ""  # why it did not

    def step(self) -> bool:
        """Look once at everything that is due; whether the run has ended."""
        now = time.monotonic()
        self._run = requeues.followed(self._run)
        every = events.read_all_job_events(self._run.path)
        job, starts = events.since_last_start(every), sum(map(events.is_start, every)) or int(events.has_started(every))
        is_queued = requeues.cause(job) is not None
        if events.end_code(job) is not None:
            self._see(Status("ended"))
        elif is_queued and self.status.phase == "running":
            self._see(requeues.status(job, self.status))
        elif not is_queued and starts > self._starts and self.status.phase == "waiting":
            self._starts = starts
            self._see(Status("running"))
        elif self._ask.due(now):
            self._see(requeues.ask(self._run))
        if self.status.phase == "ended" and shared_files.has_caches(self._run.path):
            shared_files.renew((self._first_log,))
        if self.status.phase != "waiting":
            self._show(now)
        self._show_restarts(events.last_attempt(job))
        self._show_hangs(job)
        self.pause.due(now)
        self.job_is_over = self.status.phase == "ended"
        return self.job_is_over

    def cancel(self) -> None:
        """Cancel the job, and only then report it; retry from time to time while the scheduler refuses."""
        now = time.monotonic()
        if self._cancelled or (self._cancel_tried and now - self._cancel_tried < CANCEL_RETRY_SECONDS):
            return
        first, self._cancel_tried = not self._cancel_asked, now
        self._cancel_asked = self._cancel_asked or now
        mark = self._run.path / run_files.CANCELLED
        with contextlib.suppress(OSError):  # a full disk does not keep a job alive
            mark.touch()
        try:
            self._run.scheduler.cancel(self._run.job_id, self._run.plan)
            self._cancelled = True
        except CtrainError as error:
            with contextlib.suppress(OSError):  # the job goes on: what ends it later was not the user
                mark.unlink(missing_ok=True)
            if error.message != self._refusal:
                self._observer.warn(f"{error.message}; trying again")
            self._refusal = error.message
        if first:
            self._observer.cancelling(self._run.job_name)
        self._ask.reset()
        self.pause.reset()

    def given_up(self) -> bool:
        """Whether a cancelled job takes too long to end, or could not be cancelled."""
        if not self._cancel_asked or time.monotonic() - self._cancel_asked < CANCEL_TIMEOUT_SECONDS:
            return False
        self.job_is_over = self._cancelled
        return True

    def _see(self, status: Status) -> None:
        if status.phase != self.status.phase:
            self._ask.reset()
            self.pause.reset()
        if status.phase == "running":
            self._started = self._started or time.monotonic()
        elif status.phase == "waiting":
            self._started = 0.0
        self.status = status
        self._observer.status(status)

    def _show(self, now: float) -> None:
        records, pieces = self._metrics.read(), self._log.pieces()
        text = next(pieces, "")
        if (records or text) and not self._output_seen and self._run.plan.checks.preflight:
            self._count_ranks()  # a fast program's first output may come before its preflight was shown
        self._observer.metrics(records)
        for piece in chain((text,), pieces):
            self._show_output(piece)
        if records or text:
            self._output_seen = True
            self.pause.reset()
        if not self._output_seen:
            self._show_start(now)

    def _show_output(self, text: str) -> None:
        """What rank 0 has written, with a line of ctrain's own where its log has the mark of a restart."""
        if not self._run.plan.program.has_attempts:
            self._observer.output(text)
            return
        first, *rest = restarts.MARK.split(text)
        self._observer.output(first)
        for attempt, more in zip(rest[::2], rest[1::2]):
            self._show_restarts(int(attempt))
            self._observer.output(more)

    def _show_restarts(self, attempt: int) -> None:
        """Show the restarts up to an attempt, each once."""
        if attempt <= self._attempt:
            return
        for restart in restarts.find(self._run)[self._attempt : attempt]:
            self._observer.restarted(restart, self._run.plan.program.restarts)
            self._attempt = restart.attempt
        self._output_seen, self._started = False, time.monotonic()
        self._up.clear()
        self.pause.reset()

    def _show_hangs(self, job: list[events.Event]) -> None:
        lines = hangs.lines(job)
        if self._hangs is None:  # only what goes on is news to whoever comes later
            self._hangs = len(lines) - bool(hangs.of_attempt(job))
        for line in lines[self._hangs :]:
            self._observer.hang(line)
        self._hangs = len(lines)

    def _show_start(self, now: float) -> None:
        """Until the first output: how many ranks are up; and when even these are silent, what the job's log says."""
        total, up = self._run.plan.recorded_ranks, sum(self._up.values())
        if up < total and now >= self._count_at:
            before, begun = up, time.monotonic()
            up = self._count_ranks()
            self._count_at = begun + (time.monotonic() - begun) / COUNT_SHARE
            if up != before:
                self.pause.reset()
        self._observer.ranks(up, total, self._run.plan.unit)
        if not up and self._started and now - self._started > SILENCE_SECONDS:
            # How torchrun ended the ranks of an attempt before fills the screen, with several lines for each.
            for line in restarts.MARK.split(self._job_log.read())[-1].splitlines():
                if line.strip():
                    self._observer.job_log(line)

    def _count_ranks(self) -> int:
        """How many ranks have started. The files of nodes whose ranks all have are not read again."""
        for path in events.node_files(self._run.path):
            if self._up.get(path, 0) < self._run.plan.recorded_ranks // self._run.plan.size.nodes:
                node_events = events.of_attempt(events.read(path), self._attempt)
                self._up[path] = ranks.started(ranks.from_events(node_events))
                for message in preflight_results.messages(node_events):
                    if message not in self._preflight:
                        self._preflight.add(message)
                        self._observer.preflight(message)
        return sum(self._up.values())
