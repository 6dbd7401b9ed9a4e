"""A pseudo-terminal with a program in it, as a user has it: keys go in, and what is on the screen comes out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

DEADLINE_SECONDS = 120.0  # generous, for the machine may be busy


class Terminal:
    """A session with a controlling terminal of 24 rows and 200 columns, and `argv` in it."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Optional[Mapping[str, str]] = None) -> None:
        self.screen = ""
        self.code: Optional[int] = None
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):  # that who runs the tests may ignore
                signal.signal(number, signal.SIG_DFL)
            os.chdir(cwd)
            os.execvpe(argv[0], list(argv), dict(os.environ if env is None else env))  # noqa: S606  # of a test
        attributes = termios.tcgetattr(self._master)
        attributes[3] |= termios.NOFLSH  # Ctrl-C would discard what a busy machine has not read yet: half a picture
        termios.tcsetattr(self._master, termios.TCSANOW, attributes)
        self.resize(24, 200)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> str:
        """Wait until `text` is on the screen; what came before it. Both are taken off."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in self.screen:
            assert time.monotonic() < deadline, f"waited in vain for {text!r}: {self.screen!r}"
            assert self._read(), f"ended without {text!r}: {self.screen!r}"
        before, _, self.screen = self.screen.partition(text)
        return before

    def end(self) -> int:
        """Wait for the program's end: its exit code, negative for a signal."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self._read():
            assert time.monotonic() < deadline, f"did not end: {self.screen!r}"
        return self.close()

    def close(self) -> int:
        """Hang up, as a lost connection does, and wait for the program's end; its exit code."""
        if self.code is None:
            os.close(self._master)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def _read(self) -> bool:
        """Read what comes within a second; whether a program still has the terminal open."""
        if select.select([self._master], [], [], 1.0)[0]:
            with contextlib.suppress(OSError):  # EIO: none has
                data = os.read(self._master, 1 << 16)
                self.screen += data.decode(errors="replace")
                return True
            return False
        return True
