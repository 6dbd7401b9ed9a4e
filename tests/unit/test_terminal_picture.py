"""docs/site/terminal_picture.py, which makes docs/live-view.svg of a recording."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
RECORDING = (
    "output 1\r\nrun   one\r\nstep 1/3"  # the foot of cli/foot.py: its lines are drawn below the output
    "\r\x1b[1A\x1b[Joutput 2\r\n\x1b[1mrun   one\x1b[0m\r\nstep 2/3"
    "\r\x1b[1A\x1b[Jrun   one\r\nstep 3/3"
    "\r\x1b[1A\x1b[Jcompleted\r\n"
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("step 2/3", ["output 1", "output 2", "\x1b[1mrun   one\x1b[0m", "step 2/3"]), ("step 9/3", [""])],
)
def test_the_screen_is_that_of_the_last_foot_with_the_text(text: str, shown: list[str]) -> None:
    script = runpy.run_path(str(TOP / "docs/site/terminal_picture.py"))
    assert script["last_frame"](RECORDING, text) == shown


def test_the_picture_loads_nothing_of_other_hosts() -> None:
    picture = (TOP / "docs/live-view.svg").read_text(encoding="utf-8")
    assert "step 100/120" in picture.replace("&#160;", " ")
    assert "@font-face" not in picture and "url(http" not in picture
