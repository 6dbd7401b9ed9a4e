"""What is told on stderr while a store is read or written: how far it has come, and what else to know."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Optional

from ctrain_runtime.base.text import format_duration, format_size

_WIDTH = 20
_PAUSE = 0.2  # seconds


class Bar:
    """Counts bytes up to `total`, from any thread. Shows nothing where stderr is no terminal."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._done = 0
        self._started = self._shown = time.monotonic()
        self._lock = threading.Lock()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def at(self, done: int) -> None:
        """So many bytes are done."""
        self.add(done - self._done)

    def add(self, count: int) -> None:
        """So many more bytes are done."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if sys.stderr.isatty() and now - self._shown > _PAUSE:
                self._shown = now
                sys.stderr.write(f"\r\033[K{self._line(now - self._started)}")
                sys.stderr.flush()

    def _line(self, taken: float) -> str:
        full = min(_WIDTH, _WIDTH * self._done // max(1, self._total))
        bar = "█" * full + "░" * (_WIDTH - full)
        left = format_duration(max(0.0, taken * (self._total - self._done) / max(1, self._done)))
        return f"{self._what}  {bar}  {format_size(self._done)} of {format_size(self._total)}  {left} left"


def print_note(text: str) -> None:
    """A line for people, beside what a verb prints."""
    print(text, file=sys.stderr)
