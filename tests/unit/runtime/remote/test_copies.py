from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import JobError
from ctrain_runtime.remote import copies


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A parent of runs with the copies `used`, of the run `one`, `unused` and `fresh`."""
    for name in ("used", "unused", "fresh"):
        (tmp_path / ".code" / name / "job").mkdir(parents=True)
        (tmp_path / ".code" / name / "job/train.py").touch()
        if name != "fresh":
            age(tmp_path / ".code" / name)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / run_files.PLAN).write_text(f'{{"workdir": "{tmp_path}/.code/used/job"}}')
    (tmp_path / "sweep.json").touch()
    return tmp_path


def age(path: Path) -> None:
    hours_ago = time.time() - copies.KEPT_SECONDS - 60
    os.utime(path, (hours_ago, hours_ago))


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_a_copy_that_no_run_is_from_is_removed(parent: Path) -> None:
    assert names(copies.unneeded(parent)) == ["unused"]
    assert names(copies.unneeded(parent, {parent / "one"})) == ["unused", "used"]
    assert copies.remove(parent / ".code/unused")
    assert not copies.remove(parent / ".code/used")
    assert not copies.remove(parent / ".code/fresh")
    assert not copies.remove(parent / ".code/unused")
    assert {path.name for path in (parent / ".code").iterdir() if path.is_dir()} == {"used", "fresh"}
    assert copies.unneeded(parent / "one") == []


def test_one_that_a_submission_uses_or_has_asked_for_stays(parent: Path) -> None:
    copy = parent / ".code/unused"
    with copies.in_use(copy / "job"):
        assert copies.unneeded(parent) == []
        age(copy)  # as on a line that was cut for hours: the lock still holds
        assert not copies.remove(copy)
    assert copies.touch(copy)
    assert not copies.remove(copy)
    age(copy)
    assert copies.remove(copy)
    assert not copies.touch(copy)
    with pytest.raises(JobError, match=r"unused was removed meanwhile\. Retry the same line"), copies.in_use(copy):
        pass
    with copies.in_use(parent):
        pass


def test_what_an_interruption_has_left_is_removed(parent: Path) -> None:
    for name in (".unused.gone", ".0123.tmp"):
        (parent / ".code" / name).mkdir()
        age(parent / ".code" / name)
    assert all(map(copies.remove, copies.unneeded(parent)))
    assert {path.name for path in (parent / ".code").iterdir() if path.is_dir()} == {"used", "fresh"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_run_that_cannot_be_read_may_be_from_any(parent: Path) -> None:
    (parent / "one" / run_files.PLAN).chmod(0)
    assert copies.unneeded(parent) == []


def test_a_plan_that_is_damaged_may_be_of_any(parent: Path) -> None:
    (parent / "two" / run_files.PLAN).mkdir(parents=True)  # whatever it is, it cannot be read
    assert copies.unneeded(parent) == []
    assert not copies.remove(parent / ".code/unused")
