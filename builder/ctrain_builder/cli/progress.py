"""Shows a build: a line when a step begins, twice a minute, and when it ends; on a terminal live lines. They tell how
long the build has run, and how long it will."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Optional, TextIO

from ctrain_builder.build_host.secrets import mask
from ctrain_builder.cli.time_left import TimeLeft
from ctrain_builder.layers.container import last_lines
from ctrain_builder.progress import StepName
from ctrain_runtime.base.text import format_duration, format_size

if TYPE_CHECKING:  # an optional dependency, imported where there is a terminal
    from rich.live import Live
    from rich.text import Text

_NAME_WIDTH = 20
_WIDTH = 120
_SILENT = 30.0  # seconds after which a step that runs is shown again where no terminal shows it


class Stopped(Exception):
    """The whole of ctrain is being ended."""


class ProgressLines:
    """A ctrain_builder.progress.Progress that prints.

    `prefix` names the image in each line, when several are built. `live` is for one build at a time. Once `stop` is
    set, the build ends. Of `secrets` the last lines of running steps show nothing.
    """

    def __init__(
        self,
        out: TextIO,
        prefix: str = "",
        *,
        live: bool = True,
        stop: Optional[threading.Event] = None,
        secrets: Sequence[str] = (),
    ):
        self._out = out
        self.secrets = secrets
        self._prefix = prefix
        self._stop = stop or threading.Event()
        self._running: list[_Step] = []
        self._time = TimeLeft()
        self._live = self._start_live() if live and out.isatty() and find_spec("rich") else None

    def expect(self, steps: Mapping[StepName, float], basis: str) -> None:
        self._time.expect(steps)
        if steps:
            self._print(f"about {format_duration(sum(steps.values()))} to go, {basis}")

    def begin(self, kind: str, name: str, log: Path, expected: Optional[float] = None) -> _Step:
        step = _Step(self, kind, name, log, expected)
        self._running.append(step)
        self._time.begin(step.step_name)
        if not self._live and kind != "test":
            usual = f"usually takes {format_duration(expected)}" if expected else ""
            self._print(f"{kind:<8}{name:<{_NAME_WIDTH}}  started   {log}  {usual}")
        return step

    def done(self, kind: str, name: str, outcome: str, size: Optional[int] = None) -> None:
        self._line(kind, name, outcome, size, "")

    def tick(self) -> None:
        if self._stop.is_set():
            raise Stopped
        for step in [] if self._live else list(self._running):
            if step.is_silent():
                total = self._time.describe()
                width = _WIDTH - len(total) - 2
                self._print(f"{step.describe()[:width]:<{width}}  {total}")

    def note(self, text: str) -> None:
        self._print(text)

    def close(self) -> None:
        """Remove the live lines: nothing runs any more."""
        self._running.clear()
        if self._live:
            self._live.stop()

    def end(self, step: _Step, outcome: str, size: Optional[int]) -> None:
        self._running.remove(step)
        self._time.end(step.step_name)
        if self._live:
            self._live.refresh()  # else its line is drawn once more below the one that ends it
        total = "" if step.kind == "test" else f"({self._time.describe()})"
        self._line(step.kind, step.name, outcome, size, f"{format_duration(step.elapsed):<11}  {total}")

    def _start_live(self) -> Live:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._out, highlight=False, markup=False, emoji=False)
        live = Live(console=console, get_renderable=self._render, transient=True, redirect_stdout=False)
        live.start()
        return live

    def _render(self) -> Text:
        from rich.text import Text

        lines = [step.describe() for step in list(self._running)]
        if lines:
            lines.append(self._time.describe())
        return Text("\n".join(f"{self._prefix}{line}" for line in lines), no_wrap=True, overflow="crop")

    def _line(self, kind: str, name: str, outcome: str, size_in_bytes: Optional[int], time_taken: str) -> None:
        shown = "" if size_in_bytes is None else format_size(size_in_bytes)
        self._print(f"{kind:<8}{name:<{_NAME_WIDTH}}  {outcome:<8}  {shown:>8}  {time_taken}")

    def _print(self, line: str) -> None:
        text = f"{self._prefix}{line}".rstrip()
        if self._live and self._live.is_started:
            self._live.console.print(text, soft_wrap=True)
        else:
            self._out.write(f"{text}\n")  # in one piece: other builds write too
            self._out.flush()


class _Step:
    """A step that runs, and how long it took before, in seconds."""

    def __init__(self, lines: ProgressLines, kind: str, name: str, log: Path, expected: Optional[float]) -> None:
        self.kind, self.name = kind, name
        self.step_name = StepName(kind, "" if kind == "test" else name)
        self._lines, self._log, self._expected = lines, log, expected
        self._started = self._shown = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def end(self, outcome: str, size: Optional[int] = None) -> None:
        self._lines.end(self, outcome, size)

    def is_silent(self) -> bool:
        """Whether nobody has seen it for long; who asks shows it then."""
        now = time.monotonic()
        silent = now - self._shown >= _SILENT
        if silent:
            self._shown = now
        return silent

    def describe(self) -> str:
        """Its name, the time elapsed and expected, and the last line of its log."""
        usual = f" of about {format_duration(self._expected)}" if self._expected else ""
        last = "".join(last_lines(self._log, 1)) if self._log.exists() else ""
        last = mask(last.encode(), self._lines.secrets).decode()
        line = f"{self.kind:<8}{self.name:<{_NAME_WIDTH}}  {format_duration(self.elapsed)}{usual:<16}  {last.strip()}"
        return "".join(c for c in line if c.isprintable())
