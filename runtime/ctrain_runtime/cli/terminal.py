"""The view of a run: the output of rank 0, on a terminal a moving line below it, and a few lines of ctrain's own."""

from __future__ import annotations

import shutil
import time
from typing import Any, Optional, TextIO

from ctrain_runtime.base.text import clock_time, pluralize
from ctrain_runtime.cli.output import ERASE_LINE, Writer
from ctrain_runtime.cli.progress import ASCII_BLOCKS, BLOCKS, Pace, last_with_loss, progress, whole
from ctrain_runtime.run.record import Restart
from ctrain_runtime.schedulers.protocol import Status

KEPT = 1 << 14  # characters
SILENCE_SECONDS = 10.0  # without output after all ranks are up; then a line says so where no terminal shows it


class Terminal:
    """A RunObserver that writes to `out` and never raises: output must not affect a job.

    The moving line, the progress of the start and later a bar from metrics.jsonl, is drawn only on a terminal.
    """

    def __init__(self, out: TextIO) -> None:
        self.last_output = ""  # the end of what the program has written
        self._out = Writer(out)
        self._live = self._out.is_terminal()
        self._blocks = BLOCKS if self._out.can_show(BLOCKS) else ASCII_BLOCKS
        self._name = "the job"
        self._phase = ""
        self._shown: set[str] = set()  # keys of the lines shown in this phase; a requeued job shows them again
        self._notes: set[str] = set()
        self._all_up: Optional[float] = None  # when all ranks were up
        self._has_output = False
        self._moving_line = ""
        self._is_drawn = False
        self._at_line_start = True
        self._pace = Pace()

    @property
    def step(self) -> Optional[int]:
        """The last step that metrics.jsonl reported."""
        return self._pace.step

    def show(self, text: str) -> None:
        """Show one or more lines of ctrain's own."""
        self._write_line(text)
        self._draw()

    def warn(self, line: str) -> None:
        self.show(f"warning: {line}")

    def submitted(self, name: str) -> None:
        self._name = name

    def status(self, status: Status) -> None:
        if status.phase != self._phase:
            self._phase = status.phase
            self._shown.clear()
        if status.phase == "waiting":
            reason = "" if status.word in ("", "None") else f" ({status.word})"
            start = f", expected to start {clock_time(status.starts_at)}" if status.starts_at else ""
            # One line per reason, and one for the first estimate: later ones only shift it.
            self._show_new(f"{self._name} is queued{reason}{start}", f"{reason}{bool(start)}")
        elif status.phase == "running":
            self._show_new(f"{self._name} started", "started")
        if status.note and status.note not in self._notes:
            self._notes.add(status.note)
            self.show(status.note)

    def ranks(self, started: int, total: int, unit: str) -> None:
        """Show how many ranks, or nodes, are up. Called repeatedly: silence after the start is noticed here."""
        if self._has_output or self._phase == "ended":
            return
        all_up = f"{pluralize(total, unit)} up, waiting for the first output"
        if self._live:
            self._move(f"starting: {started}/{total} {unit}s up" if started < total else all_up)
        elif started >= total:
            self._all_up = time.monotonic() if self._all_up is None else self._all_up
            if time.monotonic() - self._all_up >= SILENCE_SECONDS:
                self._show_new(all_up, "all up")

    def preflight(self, line: str) -> None:
        self.show(f"preflight: {line}")

    def job_log(self, line: str) -> None:
        self.show(f"job.log: {line}")

    def output(self, text: str) -> None:
        if text:
            self._end_start()
            self._erase()
            self._out.write(text)
            self.last_output = (self.last_output + text)[-KEPT:]
            self._at_line_start = text.endswith("\n")
            self._draw()

    def metrics(self, records: list[dict[str, Any]]) -> None:
        steps = [record for record in records if whole(record.get("step")) is not None]
        if steps:
            self._end_start()
            left = self._pace.update(steps[-1], time.monotonic())
            shown = last_with_loss(steps)
            if shown:
                columns = shutil.get_terminal_size().columns - 1  # of which _draw shows the rest
                self._move(progress(shown, left, self._blocks, columns))

    def restarted(self, restart: Restart, allowed: int) -> None:
        count = f"({restart.attempt} of {allowed})"
        self.show(f"{restart.reason}; restarting from {restart.start} {count}")
        self._has_output, self._all_up = False, None
        self._shown.discard("all up")

    def cancelling(self, name: str) -> None:
        self.show(f"cancelling {name} ...")

    def close(self) -> None:
        """Erase the moving line, and end an unfinished line of the program."""
        self._erase()
        self._moving_line = ""
        if not self._at_line_start:
            self._out.write("\n")
            self._at_line_start = True
        self._out.flush()

    def _show_new(self, text: str, key: str) -> None:
        if key not in self._shown:
            self._shown.add(key)
            self.show(text)

    def _write_line(self, text: str) -> None:
        self._erase()
        self._out.write(("" if self._at_line_start else "\n") + text + "\n")
        self._at_line_start = True

    def _end_start(self) -> None:
        """The program has written something: erase the line about the start."""
        if not self._has_output:
            self._has_output = True
            self._move("")

    def _move(self, line: str) -> None:
        """Make `line` the moving one."""
        if line != self._moving_line:
            self._erase()
            self._moving_line = line
            self._draw()

    def _erase(self) -> None:
        if self._is_drawn:  # else the line is the program's
            self._out.write(ERASE_LINE)
            self._is_drawn = False

    def _draw(self) -> None:
        if self._live and self._moving_line and self._at_line_start and not self._is_drawn:
            columns = shutil.get_terminal_size().columns
            self._out.write(self._moving_line[: columns - 1])  # a wrapped line cannot be erased
            self._is_drawn = True
        self._out.flush()
