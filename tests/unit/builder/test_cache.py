from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder.cache import Cache, open_cache
from ctrain_runtime.errors import BuildError, SpaceError


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache(tmp_path / "cache")


def test_a_new_cache_is_private(cache: Cache) -> None:
    assert cache.root.stat().st_mode & 0o777 == 0o700
    assert open_cache(cache.root) == cache


def test_a_cache_that_others_could_have_prepared_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "open"):
        with pytest.raises(BuildError, match="is a link, another user's, or writable by others"):
            open_cache(tmp_path / name)


def test_a_work_folder_goes_with_its_build(cache: Cache) -> None:
    with pytest.raises(RuntimeError), cache.work_folder() as folder:
        (folder / "x").mkdir()
        raise RuntimeError
    assert not folder.exists()


def test_sweep_removes_only_what_nobody_uses(cache: Cache) -> None:
    left = cache.root / "tmp/killed"
    left.mkdir()
    with cache.work_folder() as alive:
        cache.sweep()
        assert alive.exists()
    assert not left.exists()


def test_too_little_space_is_said_before_anything_starts(cache: Cache) -> None:
    with pytest.raises(SpaceError, match=r"building x needs about 1000000.0 GB"):
        cache.require_space(10**15, "building x")
