"""Signals as flags that a loop reads: they interrupt nothing half way, whenever they come and however often."""

from __future__ import annotations

import os
import select
import signal
import time
from types import FrameType, TracebackType
from typing import Any, Optional

DEBOUNCE_SECONDS = 1.0  # a terminal, a shell and a wrapper may each send a signal for one Ctrl-C


class Interrupts:
    """While entered: SIGINT and SIGTERM set `cancel`, a second one sets `leave`: stop waiting for the end of the job.
    SIGHUP sets `detach`: the terminal was closed, the run continues. With `only_detach` all three do.
    """

    def __init__(self, *, only_detach: bool = False) -> None:
        self._only_detach = only_detach
        self.cancel = False
        self.leave = False
        self.detach = False
        self._first = 0.0

    def __enter__(self) -> Interrupts:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # Signals that the caller ignores stay ignored, as SIGHUP under nohup.
        handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        self._before: dict[signal.Signals, Any] = {number: signal.signal(number, self._handle) for number in handled}
        # Where job.sh is a child, its end is seen at once: every signal that has a handler ends the wait.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float) -> None:
        """Sleep; a signal ends it early."""
        if select.select([self._read], [], [], seconds)[0]:
            os.read(self._read, 4096)

    def _handle(self, number: int, _frame: Optional[FrameType]) -> None:
        now = time.monotonic()
        if number == signal.SIGHUP or self._only_detach:
            self.detach = True
        elif not self.cancel:
            self.cancel, self._first = True, now
        elif now - self._first > DEBOUNCE_SECONDS:
            self.leave = True
