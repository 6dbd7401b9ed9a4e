"""Lines that stay below what is written to a terminal: the foot.

No mode of the terminal is changed, and the cursor is never hidden. So whatever ends ctrain leaves it in order.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from ctrain_runtime.cli.output import ERASE_LINE, Writer

KEPT = 1 << 14  # characters
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # colours
ERASE_BELOW = "\033[J"


class Foot:
    """Writes text with the foot below it. Never raises."""

    def __init__(self, out: Writer) -> None:
        self._out = out
        self._lines: list[str] = []
        self._drawn: list[str] = []  # what is on the screen, with the unfinished line above it
        self._last = ""  # the end of what was written

    @property
    def at_line_start(self) -> bool:
        return not self._last or self._last.endswith("\n")

    def write(self, text: str) -> None:
        self._erase()
        self._out.write(text)
        self._last = (self._last + text)[-KEPT:]
        self._draw()

    def lay(self, lines: Sequence[str]) -> None:
        """Make `lines` the foot."""
        if list(lines) != self._lines:
            self._erase()
            self._lines = list(lines)
            self._draw()

    def close(self) -> None:
        """Erase the foot, and end an unfinished line."""
        self.lay(())
        if not self.at_line_start:
            self.write("\n")
        self._out.flush()

    def _erase(self) -> None:
        """The cursor is behind the last line. A terminal that has become narrower may have wrapped all of them."""
        if not self._drawn:
            return
        columns = max(1, self._out.columns())
        up = sum(max(1, -(-_width(line) // columns)) for line in self._drawn) - 1
        self._out.write(f"\r\033[{up}A{ERASE_BELOW}" if up else ERASE_LINE)
        if not self.at_line_start:
            self._out.write(self._unfinished() + ("\r" if self._last.endswith("\r") else ""))
        self._drawn = []

    def _draw(self) -> None:
        if self._lines and not self._drawn:
            if self.at_line_start:
                self._drawn = list(self._lines)
                self._out.write("\n".join(self._lines))
            elif len(self._lines) > 1 and ESCAPES.sub("", self._unfinished()).isprintable():
                self._drawn = [self._unfinished(), *self._lines]
                self._out.write("\n" + "\n".join(self._lines))
        self._out.flush()

    def _unfinished(self) -> str:
        """The line that the program has not ended, as bars are: what it has written over is not part of it."""
        line = self._last.rpartition("\n")[2]
        return line.rstrip("\r").rpartition("\r")[2]


def _width(line: str) -> int:
    """In columns."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in ESCAPES.sub("", line))
