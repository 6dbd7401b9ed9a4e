"""The scripts and plans of four launches, byte for byte: a change of what runs on a cluster is seen in review."""

from __future__ import annotations

import difflib

import pytest

from golden import cases

FILES = cases.files()


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
    there = {f"{path.parent.name}/{path.name}" for path in cases.FOLDER.glob("*/*") if path.suffix in (".sh", ".json")}
    assert there == set(FILES)
