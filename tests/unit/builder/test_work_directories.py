from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cache.build_cache import Cache
from samples.directories import content, fill


def test_a_work_directory_goes_with_its_build(cache: Cache) -> None:
    with pytest.raises(RuntimeError), cache.work.create() as folder:
        (folder / "x").mkdir()
        raise RuntimeError
    assert not folder.exists()


def test_a_work_directory_goes_even_if_its_folders_are_read_only(cache: Cache) -> None:
    with cache.work.create() as folder:
        (folder / "root" / "sealed").mkdir(parents=True)
        (folder / "root" / "sealed" / "file").touch()
        (folder / "root" / "link").symlink_to("/")
        (folder / "root" / "sealed").chmod(0o555)
    assert not folder.exists()


def test_sweep_removes_only_what_nobody_uses(cache: Cache) -> None:
    left = cache.root / "tmp/ctrain-build-killed00"
    left.mkdir()
    (cache.root / "locks/killed").touch()
    with cache.work.create() as alive, cache.locks.hold("alive"):
        assert cache.work.sweep() == []
        assert alive.exists()
        assert [path.name for path in (cache.root / "locks").iterdir()] == ["alive"]
    assert not left.exists()


def test_sweep_tells_what_it_could_not_remove(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(shutil, "rmtree", fail)
    (cache.root / "tmp/ctrain-build-killed00").mkdir()
    assert cache.work.sweep() == [cache.root / "tmp/ctrain-build-killed00"]


def test_sweeping_takes_only_what_builds_have_left(cache: Cache) -> None:
    kept = fill(cache.root / "tmp", "data.bin", "mine/x", "tmpvqb08g2f/x", "build-vqb08g2f/x")
    (cache.root / "tmp/ctrain-build-00000000").mkdir()  # killed before its lock was there
    fill(cache.root / "tmp/ctrain-build-left0000", ".live", "x")
    with cache.work.create() as work:
        assert cache.work.sweep() == []
        assert work.exists()
    assert content(cache.root / "tmp") == kept


def test_a_directory_that_is_swept_while_it_is_made_is_made_again(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, list[str]()

    def swept(**options: Any) -> str:
        made.append(make(**options))
        assert len(made) > 1 or cache.work.sweep() == []
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with cache.work.create() as work:
        assert (len(made), str(work)) == (2, made[1])
        assert work.exists()
    assert content(cache.root / "tmp") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_work_directory_of_another_user_stays(cache: Cache) -> None:
    fill(cache.root / "tmp/ctrain-build-left0000", ".live")
    try:
        os.chown(cache.root / "tmp/ctrain-build-left0000", 12345, -1)
    except OSError:
        pytest.skip("this user namespace has one user")
    assert cache.work.sweep() == []
    assert (cache.root / "tmp/ctrain-build-left0000/.live").exists()


def test_a_work_directory_that_is_used_stays(cache: Cache) -> None:
    fill(cache.root / "tmp/ctrain-build-vqb08g2f", ".live")
    with (cache.root / "tmp/ctrain-build-vqb08g2f/.live").open() as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        assert cache.work.sweep() == []
        assert (cache.root / "tmp/ctrain-build-vqb08g2f").exists()
    cache.work.sweep()
    assert not (cache.root / "tmp/ctrain-build-vqb08g2f").exists()
