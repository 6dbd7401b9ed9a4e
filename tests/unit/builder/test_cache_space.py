from __future__ import annotations

import subprocess

import pytest

from ctrain_builder.cache import cache_space
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.files import locks
from ctrain_runtime.errors import DiskFullError


def test_too_little_space_is_said_before_anything_starts(cache: Cache) -> None:
    with pytest.raises(DiskFullError, match=r"building x needs about 1000.0 TB"):
        cache_space.require(cache, 10**15, "building x")


def test_builds_side_by_side_do_not_count_on_the_same_space(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.001)
    free = 100
    monkeypatch.setattr(cache_space, "free", lambda _: free)
    told: list[str] = []
    ticks: list[None] = []
    with cache_space.reserve(cache, 70, "one"), cache_space.reserve(cache, 30, "two"):
        assert cache_space._reserved(cache) == 100

        def tick() -> None:
            ticks.append(None)
            if len(ticks) == 3:
                raise InterruptedError

        with (
            pytest.raises(InterruptedError),
            cache_space.reserve(cache, 1, "three", lambda: told.append("waits"), tick),
        ):
            pass
    assert told == ["waits"]
    assert cache_space._reserved(cache) == 0
    (cache.root / "space/d73319ac0006390b").write_text("1000")
    with cache_space.reserve(cache, 100, "alone"):
        pass
    with (
        pytest.raises(DiskFullError, match=r"alone needs about 101 B in .*, 100 B are free"),
        cache_space.reserve(cache, 101, "alone"),
    ):
        pass
    assert list((cache.root / "space").iterdir()) == []


def test_whether_copies_share_blocks_is_as_cp_finds(cache: Cache) -> None:
    layer = cache.layers.path("key", False)
    layer.write_bytes(bytes(8192))
    copy = cache.root / "copy"
    argv = ["cp", "--reflink=always", str(layer), str(copy)]
    done = subprocess.run(argv, capture_output=True)
    assert cache_space.shares_blocks(cache, layer) == (done.returncode == 0)
    assert list((cache.root / "tmp").iterdir()) == []
