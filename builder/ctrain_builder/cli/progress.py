"""Shows a build: a line when a step ends; on a terminal also a line that is kept up to date while it runs."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Optional, TextIO

from ctrain_builder.make.container import last_lines
from ctrain_runtime.cli.text import duration, size

_NAME_WIDTH = 20


class Lines:
    """A ctrain_builder.build.Progress that prints."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._kind, self._name, self._log = "", "", Path()
        self._started = self._shown = 0.0

    def begin(self, kind: str, name: str, log: Path) -> None:
        self._kind, self._name, self._log = kind, name, log
        self._started = time.monotonic()
        if not self._live and kind != "test":
            print(f"{kind:<8}{name:<{_NAME_WIDTH}}  started   {log}", file=self._out, flush=True)

    def tick(self) -> None:
        now = time.monotonic()
        if not self._live or now - self._shown < 0.5:
            return
        self._shown = now
        said = "".join(last_lines(self._log, 1))
        line = f"{self._kind:<8}{self._name:<{_NAME_WIDTH}}  {duration(now - self._started):<12}{said.strip()}"
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\033[K{''.join(c for c in line if c.isprintable())[:width]}", end="", file=self._out, flush=True)

    def end(self, outcome: str, size_in_bytes: Optional[int] = None) -> None:
        self.clear()
        self._line(self._kind, self._name, outcome, size_in_bytes, duration(time.monotonic() - self._started))

    def cached(self, kind: str, name: str, size_in_bytes: int) -> None:
        self._line(kind, name, "cached", size_in_bytes, "")

    def waiting(self) -> None:
        print("waiting for another ctrain build that makes the same thing", file=self._out, flush=True)

    def clear(self) -> None:
        """Take the live line away."""
        if self._live:
            print("\r\033[K", end="", file=self._out, flush=True)

    def _line(self, kind: str, name: str, outcome: str, count: Optional[int], time_taken: str) -> None:
        shown = "" if count is None else size(count)
        line = f"{kind:<8}{name:<{_NAME_WIDTH}}  {outcome:<8}  {shown:>8}  {time_taken}"
        print(line.rstrip(), file=self._out, flush=True)
