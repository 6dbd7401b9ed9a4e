"""The view of a run: the output of rank 0, a few lines of ctrain's own, and on a terminal what moves below them."""

from __future__ import annotations

import dataclasses
import os
import time
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Optional, TextIO

from ctrain_runtime.base.text import clock_time, pluralize
from ctrain_runtime.cli import live_view
from ctrain_runtime.cli.foot import Foot
from ctrain_runtime.cli.live_view import View
from ctrain_runtime.cli.output import Writer
from ctrain_runtime.cli.progress import ASCII_BLOCKS, BLOCKS, Pace, last_with_loss, progress, whole
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run import events
from ctrain_runtime.run.record import Restart
from ctrain_runtime.schedulers.protocol import Status

KEPT = 1 << 14  # characters
SILENCE_SECONDS = 10.0  # without output after all ranks are up; then a line says so where no terminal shows it


class Terminal:
    """A RunObserver that writes to `out` and never raises: output must not affect a job.

    On a terminal, the live view of the run is drawn below its output; where rich is not installed, one line: the
    progress of the start, and later a bar from metrics.jsonl. Not if asked to be `plain`, nor on a dumb one.
    """

    def __init__(self, out: TextIO, *, plain: bool = False) -> None:
        self.last_output = ""  # the end of what the program has written
        self._out = Writer(out)
        self._foot = Foot(self._out)
        self._live = self._out.is_terminal() and not plain and os.environ.get("TERM") != "dumb"
        self._blocks = BLOCKS if self._out.can_show(BLOCKS) else ASCII_BLOCKS
        self._name = "the job"
        self._run: Optional[Path] = None
        self._view: Optional[View] = None
        self._phase = ""
        self._shown: set[str] = set()  # keys of the lines shown in this phase; a requeued job shows them again
        self._notes: set[str] = set()
        self._all_up: Optional[float] = None  # when all ranks were up
        self._first_attempt = 0  # of the job
        self._has_output = False
        self._pace = Pace()

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks, and no script."""
        return self._out.is_terminal()

    @property
    def step(self) -> Optional[int]:
        """The last step that metrics.jsonl reported."""
        return self._pace.step

    def show(self, text: str) -> None:
        """Show one or more lines of ctrain's own."""
        self._foot.write(("" if self._foot.at_line_start else "\n") + text + "\n")

    def warn(self, line: str) -> None:
        self._tell(f"warning: {line}")

    def submitted(self, name: str, plan: Optional[LaunchPlan] = None) -> None:
        """The run has a job. With its `plan`, it gets a live view."""
        self._name = name
        if plan and self._live and find_spec("rich"):
            self._run, size = Path(plan.run_directory), plan.size
            self._view = View(plan.run, plan.unit, size.nodes, plan.recorded_ranks, size.time_limit)
            self._update()

    def status(self, status: Status) -> None:
        if status.phase != self._phase:
            self._phase = status.phase
            self._shown.clear()
        if status.phase == "waiting":
            reason = "" if status.word in ("", "None") else f" ({status.word})"
            start = f", expected to start {clock_time(status.starts_at)}" if status.starts_at else ""
            # One line per reason, and one for the first estimate: later ones only shift it.
            self._show_new(f"{self._name} is queued{reason}{start}", f"{reason}{bool(start)}")
            self._update(state=f"queued{reason}{start}", begun=None)
        elif status.phase == "running":
            self._show_new(f"{self._name} started", "started")
            if self._view and self._view.state != "running":
                self._update(state="running", begun=self._begun())
        if status.note and status.note not in self._notes:
            self._notes.add(status.note)
            self._tell(status.note)

    def ranks(self, started: int, total: int, unit: str) -> None:
        """Show how many ranks, or nodes, are up. Called repeatedly: silence after the start is noticed here."""
        if self._has_output or self._phase == "ended":
            return
        all_up = f"{pluralize(total, unit)} up, waiting for the first output"
        if self._live:
            self._update(started=started)
            self._move(f"starting: {started}/{total} {unit}s up" if started < total else all_up)
        elif started >= total:
            self._all_up = time.monotonic() if self._all_up is None else self._all_up
            if time.monotonic() - self._all_up >= SILENCE_SECONDS:
                self._show_new(all_up, "all up")

    def preflight(self, line: str) -> None:
        self._tell(f"preflight: {line}")

    def job_log(self, line: str) -> None:
        self.show(f"job.log: {line}")

    def output(self, text: str) -> None:
        if text:
            self._end_start()
            self._foot.write(text)
            self.last_output = (self.last_output + text)[-KEPT:]

    def metrics(self, records: list[dict[str, Any]]) -> None:
        """Show what the program has measured. Called repeatedly, with no records, too: the view's time goes on."""
        steps = [record for record in records if whole(record.get("step")) is not None]
        if not steps:
            self._update()
            return
        self._end_start()
        left = self._pace.update(steps[-1], time.monotonic())
        shown = last_with_loss(steps)
        if shown:
            self._update(metrics={**self._by_rank(steps), **shown}, left=left)
            self._move(progress(shown, left, self._blocks, self._out.columns() - 1))

    def _by_rank(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        """The last times of all ranks: most records have none."""
        before, key = self._view.metrics if self._view else {}, "seconds_by_rank"
        known = [record[key] for record in (before, *records) if key in record]
        return {key: known[-1]} if known else {}

    def hang(self, line: str) -> None:
        self._tell(line)

    def restarted(self, restart: Restart, allowed: int) -> None:
        """Show a restart, of so many that each job may have."""
        at = datetime.fromisoformat(restart.time).astimezone() if restart.time else None
        self._update(restarts=restart.attempt, started=0, metrics={}, left=None)
        # A program may keep checkpoints elsewhere, and resume from these by itself.
        start = restart.start.replace("the start", "the start, as checkpoint/ is empty", 1)
        how = f"restarting from {start} ({restart.attempt - self._first_attempt} of {allowed})"
        if restart.requeued:
            self._first_attempt = restart.attempt
            how = f"going on from {start}"
        self._tell(f"{restart.reason}; {how}", at)
        self._has_output, self._all_up = False, None
        self._shown.discard("all up")

    def cancelling(self, name: str) -> None:
        self._tell(f"cancelling {name} ...")

    def close(self) -> None:
        """Erase what moves, and end an unfinished line of the program."""
        self._view = None
        self._foot.close()

    def _tell(self, line: str, at: Optional[datetime] = None) -> None:
        """Show a line that stays in the view when the output moves on."""
        self.show(line)
        if self._view:
            self._update(news=(*self._view.news, f"{at or datetime.now():%H:%M}  {line}")[-live_view.NEWS :])

    def _show_new(self, text: str, key: str) -> None:
        if key not in self._shown:
            self._shown.add(key)
            self.show(text)

    def _begun(self) -> float:
        """When the job started: by its own event, for who attaches later."""
        job = events.read_job_events(self._run) if self._run else []
        times = [event.time for event in job if event.stage == "before" and event.time]
        return times[-1] if times else time.time()

    def _end_start(self) -> None:
        """The program has written something: erase the line about the start."""
        if not self._has_output:
            self._has_output = True
            if self._view:
                self._update(started=self._view.total)
            self._move("")

    def _move(self, line: str) -> None:
        """Make `line` the moving one, where there is no view."""
        if self._live and not self._view:
            columns = self._out.columns()
            self._foot.lay([line[: columns - 1]] if line else [])  # a wrapped line cannot be erased

    def _update(self, **changes: Any) -> None:
        """Draw the view, if there is one, with these changes."""
        if self._view:
            self._view = dataclasses.replace(self._view, **changes)
            columns = self._out.columns() - 1
            rows = live_view.rows(self._view, time.time(), columns, self._blocks)
            self._foot.lay(live_view.paint(rows, columns))
