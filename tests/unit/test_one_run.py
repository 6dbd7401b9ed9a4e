"""docs/one-run.md shows lines of the code as they are."""

from __future__ import annotations

import re
from pathlib import Path

EXCERPT = re.compile(r"(?ms)^`([^`\n]+)`:\n\n```\w+\n(.*?)^```$")


def test_its_excerpts_are_lines_of_the_files_that_it_names(checkout: Path) -> None:
    excerpts = EXCERPT.findall((checkout / "docs/one-run.md").read_text(encoding="utf-8"))
    assert len(excerpts) == 12
    for file, lines in excerpts:
        assert f"\n{lines}" in (checkout / file).read_text(encoding="utf-8"), f"{file} has changed: docs/one-run.md"
