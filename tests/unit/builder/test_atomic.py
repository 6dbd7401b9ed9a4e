"""Directories that are whole or not there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_builder.files import atomic


@pytest.fixture
def private_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("private_umask")
def test_a_directory_is_never_seen_with_the_mode_of_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another admin lists it without a lock, and would be refused."""
    path, chmod = tmp_path / "channels", Path.chmod

    def checked(changed: Path, mode: int) -> None:
        assert not path.exists()
        chmod(changed, mode)

    monkeypatch.setattr(Path, "chmod", checked)
    atomic.create_directory(path, 0o2775)
    assert stat.S_IMODE(path.stat().st_mode) == 0o2775
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("taken", ["", "first"])
def test_a_directory_that_another_creates_at_the_same_time_stays_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    path, chown = tmp_path / "channels", os.chown

    def another(changed: Path, owner: int, group: int) -> None:
        chown(changed, owner, group)
        path.mkdir()
        (path / (taken or "only")).touch()
        if taken:  # it comes after the check
            monkeypatch.setattr(Path, "exists", lambda _: False)

    monkeypatch.setattr(os, "chown", another)
    atomic.create_directory(path, 0o755)
    assert [each.name for each in path.iterdir()] == [taken or "only"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_cannot_be_created_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        atomic.create_directory(tmp_path / "file" / "channels", 0o755)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_gets_its_name_once_its_content_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash, a name without its content would be an image that is empty."""
    made, target, synced = tmp_path / "made", tmp_path / "x.sif", []
    made.write_bytes(b"image")

    def fsync(number: int) -> None:
        synced.append((Path(f"/proc/self/fd/{number}").readlink(), target.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    atomic.move(made, target)
    assert synced == [(made, False), (tmp_path, True)]
