"""Shows a build: a line when a step ends; on a terminal also a line that is kept up to date while it runs."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Optional, TextIO

from ctrain_builder.make.container import last_lines
from ctrain_runtime.text import format_duration, format_size

_NAME_WIDTH = 20


class Stopped(Exception):
    """The whole of ctrain is being ended."""


class Lines:
    """A ctrain_builder.build.Progress that prints.

    `prefix` names the image in each line, when several are built. `live` is for one build at a time. Once `stop` is
    set, the build ends.
    """

    def __init__(self, out: TextIO, prefix: str = "", *, live: bool = True, stop: Optional[threading.Event] = None):
        self._out = out
        self._prefix = prefix
        self._live = live and out.isatty()
        self._stop = stop or threading.Event()
        self._kind, self._name, self._log = "", "", Path()
        self._started = self._shown = 0.0

    def begin(self, kind: str, name: str, log: Path) -> None:
        self._kind, self._name, self._log = kind, name, log
        self._started = time.monotonic()
        if not self._live and kind != "test":
            self._print(f"{kind:<8}{name:<{_NAME_WIDTH}}  started   {log}")

    def tick(self) -> None:
        if self._stop.is_set():
            raise Stopped
        now = time.monotonic()
        if not self._live or not self._kind or now - self._shown < 0.5:
            return
        self._shown = now
        said = "".join(last_lines(self._log, 1))
        step = f"{self._kind:<8}{self._name:<{_NAME_WIDTH}}  {format_duration(now - self._started):<12}{said.strip()}"
        width = shutil.get_terminal_size().columns - 1
        line = "".join(c for c in self._prefix + step if c.isprintable())[:width]
        self._out.write(f"\r\033[K{line}")
        self._out.flush()

    def end(self, outcome: str, size_in_bytes: Optional[int] = None) -> None:
        self._line(self._kind, self._name, outcome, size_in_bytes, format_duration(time.monotonic() - self._started))
        self._kind = ""

    def cached(self, kind: str, name: str, size_in_bytes: int) -> None:
        self._line(kind, name, "cached", size_in_bytes, "")

    def note(self, text: str) -> None:
        self._print(text)

    def clear(self) -> None:
        """Take the live line away."""
        if self._live:
            self._out.write("\r\033[K")
            self._out.flush()

    def _line(self, kind: str, name: str, outcome: str, count: Optional[int], time_taken: str) -> None:
        shown = "" if count is None else format_size(count)
        self._print(f"{kind:<8}{name:<{_NAME_WIDTH}}  {outcome:<8}  {shown:>8}  {time_taken}")

    def _print(self, line: str) -> None:
        self.clear()
        self._out.write(f"{self._prefix}{line}".rstrip() + "\n")  # in one piece: other builds write too
        self._out.flush()
