"""What tests keep for later sessions: samples/kept.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples.kept import kept


def test_a_file_is_made_once_from_the_same_and_never_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRAIN_TEST_CACHE", str(tmp_path))
    made: list[str] = []

    def make(path: Path) -> None:
        path.write_text("half")
        if "broken" in made:
            raise ValueError
        path.write_text("whole")
        made.append(path.name)

    first = kept("x.sif", "one", make)
    assert (first, made) == (kept("x.sif", "one", make), ["x.sif"])
    second = kept("x.sif", "two", make)
    assert (made, second.read_text(), first.exists()) == (["x.sif"] * 2, "whole", False)
    made.append("broken")
    with pytest.raises(ValueError):
        kept("x.sif", "three", make)
    (tmp_path / "0123456789ab-y").mkdir()
    directory = kept("y", "one", Path.mkdir)
    assert list(tmp_path.glob("*-y")) == [directory] and directory.is_dir()
    directory.rmdir()
    (tmp_path / "y.lock").unlink()
    assert set(tmp_path.iterdir()) == {second, tmp_path / "x.sif.lock"}
