"""What runs on a cluster and what is built, byte for byte: a change of either is seen in review.

The scripts and plans of some launches, and the definitions of every image at every tag.
"""

from __future__ import annotations

import difflib

import pytest

from golden import cases, definitions

FILES = {**cases.files(), **definitions.files()}


@pytest.mark.parametrize("name", FILES)
def test_golden(name: str) -> None:
    path = cases.FOLDER / name
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    difference = "".join(
        difflib.unified_diff(golden.splitlines(True), FILES[name].splitlines(True), f"golden/{name}", "now", n=2)
    )
    if difference:
        pytest.fail(f"{difference}\nIf that is meant: python tests/golden/regenerate.py", pytrace=False)


def test_no_golden_file_is_left_over() -> None:
    others = ("__pycache__", "losses")  # the latter: samples/losses.py
    files = {path for path in cases.FOLDER.glob("*/**/*") if path.is_file() and path.parent.name not in others}
    assert {str(path.relative_to(cases.FOLDER)) for path in files} == set(FILES)
