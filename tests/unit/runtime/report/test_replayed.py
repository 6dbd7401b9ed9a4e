from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.report.replayed import Losses, changed_files, compare_losses

NAN, INF = float("nan"), float("inf")


def _write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def _steps(*losses: Any, first: int = 1) -> list[dict[str, Any]]:
    return [{"step": step, "loss": loss} for step, loss in enumerate(losses, first)]


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        (_steps(3.0, 2.0), _steps(3.0, 2.0), Losses(2)),
        (_steps(3.0, 2.0, 1.0), _steps(3.0, 2.000001), Losses(2)),  # within a millionth; one has ended earlier
        (_steps(3.0, 2.0, 1.0), _steps(3.0, 2.1, 0.9), Losses(3, 2, 2.0, 2.1)),
        (_steps(NAN, INF), _steps(NAN, INF), Losses(2)),
        (_steps(1.0, INF), _steps(1.0, -INF), Losses(2, 2, INF, -INF)),
        (_steps(0.0), _steps(1e-300), Losses(1, 1, 0.0, 1e-300)),
        ([*_steps(3.0, 9.0), *_steps(2.0, first=2)], _steps(3.0, 2.0), Losses(2)),  # a step that was repeated
        (_steps(3.0), _steps(3.0, first=2), Losses(0)),
        ([{"step": 1}, "text", {"step": 2, "loss": "1"}, {"step": 2}], _steps(1.0, 1.0), Losses(0)),
    ],
)
def test_where_losses_part(tmp_path: Path, one: list[Any], other: list[Any], result: Losses) -> None:
    assert compare_losses(_write(tmp_path / "one", *one), _write(tmp_path / "other", *other), 1e-6) == result


def test_only_one_that_is_no_number_is_a_difference(tmp_path: Path) -> None:
    found = compare_losses(_write(tmp_path / "one", *_steps(1.0)), _write(tmp_path / "other", *_steps(NAN)), 0.5)
    assert (found.compared, found.step) == (1, 1)
    assert compare_losses(tmp_path / "one", tmp_path / "nowhere", 0.5) == Losses(0)


def test_changed_files_of_a_diff() -> None:
    one = "diff --git a/x.py b/x.py\n-a\n+b\ndiff --git a/a b/c b/a b/c\n+1\n"
    assert list(changed_files(one)) == ["uncommitted x.py", "uncommitted a b/c"]
    other = changed_files(one.replace("+b", "+c"))
    assert [name for name, digest in changed_files(one).items() if other[name] != digest] == ["uncommitted x.py"]
    assert changed_files("") == {}
