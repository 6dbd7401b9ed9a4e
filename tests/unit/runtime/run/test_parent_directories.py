from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.run.parent_directories import remember, with_remembered


def test_parents_are_remembered_once_and_those_that_are_gone_are_left_out(tmp_path: Path) -> None:
    own, other, gone = (tmp_path / name for name in ("own", "other", "gone"))
    assert with_remembered(own) == (own,)
    for parent in (own, other, gone, other):
        parent.mkdir(exist_ok=True)
        remember(parent)
    gone.rmdir()
    (tmp_path / ".local/state/ctrain/runs/no-link").touch()
    assert with_remembered(own) == (own, other)
    assert with_remembered(gone) == (gone, other, own)
    assert len(list((tmp_path / ".local/state/ctrain/runs").iterdir())) == 4


def test_where_the_home_cannot_be_written_to_nothing_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    remember(tmp_path)
    assert with_remembered(tmp_path / "own") == (tmp_path / "own",)
