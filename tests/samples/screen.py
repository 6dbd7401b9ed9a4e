"""What a terminal shows of what was written to it: lines, and the escape sequences that ctrain uses."""

from __future__ import annotations

import io
import re

TOKENS = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|([^\x1b])", re.DOTALL)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(written: str, columns: int) -> list[str]:
    """The lines of a terminal of so many columns, without the empty ones at its end."""
    lines, row, column = [""], 0, 0
    for number, letter, character in TOKENS.findall(written):
        if letter == "A":
            row = max(0, row - int(number or 1))
        elif letter == "J":
            lines[row:] = [lines[row][:column]]
        elif letter == "K":
            lines[row] = lines[row][:column]
        elif character == "\r":
            column = 0
        elif character:
            if character == "\n" or column == columns:
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            if character != "\n":
                lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
                column += 1
    return "\n".join(lines).rstrip("\n").split("\n")
