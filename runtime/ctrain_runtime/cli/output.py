"""Output that cannot fail: to streams that are closed, full, broken or in another encoding.

Verbs print() to streams that `prepare` has made safe for any text; an error of print() ends the verb, in main(). Code
that must not end because of its output, above all the watch of a run, uses a Writer or print_line.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from contextlib import suppress
from typing import Optional, TextIO

ERASE_LINE = "\r\033[K"


def prepare() -> None:
    """Make the standard streams exist and accept any text: what their encoding lacks becomes `?` or an escape."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller (`>&-`): the next file opened would take its number
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115  # open for as long as ctrain runs
            os.set_inheritable(stream.fileno(), True)  # programs started by ctrain need theirs, too
            setattr(sys, name, stream)
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def flush_all() -> None:
    """Flush the standard streams, so that nothing can fail when Python exits."""
    for stream in (sys.stdout, sys.stderr):
        Writer(stream).flush()


def print_line(text: str = "", stream: Optional[TextIO] = None) -> None:
    """Write a line to `stream` (default: stdout). Never raises."""
    writer = Writer(sys.stdout if stream is None else stream)
    writer.write(f"{text}\n")
    writer.flush()


def abandon(stream: TextIO) -> None:
    """Point the stream's file at /dev/null, so that its buffer cannot fail again."""
    with suppress(OSError, ValueError):  # ValueError: closed; some streams have no file
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)


class Writer:
    """Writes text to a stream until that fails, and is silent from then on. Never raises."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_dead = False

    def write(self, text: str) -> None:
        if self.is_dead:
            return
        try:
            self._stream.write(self._encodable(text))
        except (OSError, ValueError):  # ValueError: it was closed
            self._give_up()

    def flush(self) -> None:
        if self.is_dead:
            return
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def is_terminal(self) -> bool:
        try:
            return self._stream.isatty()
        except ValueError:
            return False

    def columns(self) -> int:
        """The width of the terminal that it writes to, which need not be that of stdout. COLUMNS wins, as elsewhere."""
        if not os.environ.get("COLUMNS"):
            with suppress(OSError, ValueError):  # it is no terminal, or no file
                own = os.get_terminal_size(self._stream.fileno()).columns
                if own:
                    return own
        return shutil.get_terminal_size().columns

    def can_show(self, text: str) -> bool:
        """Whether the stream's encoding has all of `text`."""
        return self._encodable(text) == text

    def _encodable(self, text: str) -> str:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"  # a StringIO has none
        return text.encode(encoding, "replace").decode(encoding)

    def _give_up(self) -> None:
        self.is_dead = True
        abandon(self._stream)


class Activity:
    """Shows what takes a while before a run: a line for each activity, a moving one on a terminal. Never raises."""

    def __init__(self, stream: TextIO) -> None:
        self._out = Writer(stream)
        self._live = self._out.is_terminal()
        self._what = ""

    def report(self, what: str, progress: str) -> None:
        """`what` is being done; "": nothing any more."""
        if self._live:
            line = f"ctrain: {what} {progress}"[: self._out.columns() - 1]
            self._out.write(ERASE_LINE + (line if what else ""))
        elif what != self._what and what:
            self._out.write(f"ctrain: {what} ...\n")
        self._what = what
        self._out.flush()
