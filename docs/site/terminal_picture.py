"""A picture of a terminal, as SVG: what it showed when its recording had a text for the last time.

A recording is what a program has written to a terminal: script -c 'ctrain run ...' RECORDING. docs/live-view.svg is:

python docs/site/terminal_picture.py RECORDING '118/120' 104 >docs/live-view.svg
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

FRAME = re.compile(r"\r\x1b\[(\d+)A\x1b\[J")  # cli/foot.py erases its lines so, and draws them anew
FONTS = re.compile(r"@font-face \{\{.*?\}\}\n", re.DOTALL)  # of another host
ROWS = 8


def last_frame(written: str, text: str) -> list[str]:
    """The lines on the screen when the foot that has `text` was complete."""
    lines, shown = [""], [""]
    for part in re.split(r"(\r\x1b\[\d+A\x1b\[J|\r\x1b\[K)", written.replace("\r\n", "\n")):
        if frame := FRAME.fullmatch(part):
            shown = lines if any(text in line for line in lines[-4:]) else shown
            lines = [*lines[: -1 - int(frame[1])], ""]
        elif part == "\r\x1b[K":
            lines = [*lines[:-1], ""]
        else:
            first, *others = part.split("\n")
            lines = [*lines[:-1], lines[-1] + first, *others]
    return shown[-ROWS:]


def main() -> None:
    recording, text, columns = sys.argv[1:]
    console = Console(record=True, width=int(columns), file=io.StringIO(), force_terminal=True)
    for line in last_frame(Path(recording).read_bytes().decode(), text):
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis")
    template = FONTS.sub("", CONSOLE_SVG_FORMAT)
    sys.stdout.write(console.export_svg(title="ctrain run", code_format=template, unique_id="t"))


if __name__ == "__main__":
    main()
