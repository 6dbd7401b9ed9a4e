"""What runs on a cluster and what is built, byte for byte: a change of either is seen in review.

The scripts and plans of some launches, and the definitions of every image at every tag.
"""

from __future__ import annotations

import difflib
import functools

import pytest

from golden import cases, definitions

OTHERS = ("__pycache__", "losses")  # the latter: samples/losses.py
GOLDEN = {
    str(path.relative_to(cases.FOLDER)): path
    for path in sorted(cases.FOLDER.glob("*/**/*"))
    if path.is_file() and path.parent.name not in OTHERS
}


@functools.cache
def files() -> dict[str, str]:
    """Made when a test asks: each worker of pytest imports this file, few run its tests."""
    return {**cases.files(), **definitions.files()}


def test_there_is_a_golden_file_of_all_that_is_made_and_of_nothing_else() -> None:
    assert set(GOLDEN) == set(files())


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    golden, now = GOLDEN[name].read_text(encoding="utf-8"), files().get(name, "")
    difference = "".join(
        difflib.unified_diff(golden.splitlines(True), now.splitlines(True), f"golden/{name}", "now", n=2)
    )
    if difference:
        pytest.fail(f"{difference}\nIf that is meant: python tests/golden/regenerate.py", pytrace=False)
