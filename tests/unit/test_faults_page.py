"""docs/faults.md, which runs on the cluster have written: all faults, each with its rows or none."""

from __future__ import annotations

import re

import pytest

from samples import faults

ROW = faults.Row("rank killed", "gpt", "rank 1 | failed", "31", "7", "2026-11-28, 3")


def test_the_page_names_all_faults_and_what_came_of_them() -> None:
    page = faults.PAGE.read_text()
    rows = faults.read(page)
    assert rows and faults.render(page, rows) == page
    for row in rows:
        assert row.fault in faults.FAULTS and row.program in faults.PROGRAMS and row.line, row
        assert re.fullmatch(r"\d{4}-\d\d-\d\d, \d+", row.seen), row
        assert (row.seconds, row.lost) == (faults.ENDS, "") or (row.seconds + row.lost).isdigit(), row


def test_a_row_takes_the_place_of_its_own_and_no_other() -> None:
    page = faults.render(f"# Faults\n\n{faults.HEAD}\n", [ROW])
    assert faults.read(page) == [ROW]
    assert page.count(f"| {faults.NOT_RUN} |") == len(faults.FAULTS) - 1
    other = faults.Row("rank killed", "torchrun", "rank 0 failed", "9", "0", "2026-11-28, 3")
    again = faults.Row("rank killed", "gpt", "rank 1 failed", "12", "0", "2026-11-29, 12")
    assert faults.read(faults.render(page, [ROW, other, again])) == [other, again]


@pytest.mark.parametrize(("asked", "written"), [("write", True), ("", False)])
def test_rows_are_written_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, asked: str, written: bool
) -> None:
    path = faults.PAGE.__class__(str(tmp_path)) / "faults.md"
    path.write_text(f"# Faults\n\n{faults.HEAD}\n|---|\n")
    monkeypatch.setattr(faults, "PAGE", path)
    monkeypatch.setenv("CTRAIN_FAULTS", asked)
    faults.record("crash loop", "gpt", "crash loop: ...", None, None)
    assert [row.seconds for row in faults.read(path.read_text())] == [faults.ENDS] * written
