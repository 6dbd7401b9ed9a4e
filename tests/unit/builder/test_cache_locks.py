from __future__ import annotations

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ctrain_builder.cache import eviction
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.files import locks


def test_a_lock_names_its_owner_and_goes_with_it(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PATIENCE", 0.0)
    told: list[str] = []
    done = threading.Event()

    def second() -> None:
        with cache.locks.hold("key", told.append, tick=lambda: done.set() if told else None):
            pass

    with cache.locks.hold("key"):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert done.wait(10), "the second was not told"
        assert [path.name for path in (cache.root / "locks").iterdir()] == ["key"]
    waiting.join(10)
    assert not waiting.is_alive()
    (owner,) = told
    assert re.fullmatch(rf"pid {os.getpid()} \(\S+ on \S+, since \d\d:\d\d UTC\)", owner)
    assert list((cache.root / "locks").iterdir()) == []


def test_the_lock_of_a_killed_build_is_free(cache: Cache) -> None:
    (cache.root / "locks/key").write_text("pid 1 (kim on login01, since 04:12 UTC)")
    with cache.locks.hold("key", lambda owner: pytest.fail(f"waits for {owner}")):
        assert str(os.getpid()) in (cache.root / "locks/key").read_text()


def test_who_waits_can_be_stopped(cache: Cache) -> None:
    def stop() -> None:
        raise RuntimeError

    with cache.locks.hold("key"), pytest.raises(RuntimeError), cache.locks.hold("key", tick=stop):
        pass


def test_use_keeps_and_renews(cache: Cache, layers: list[Path]) -> None:
    with cache.locks.use(layers[0]) as there:
        assert there
        assert eviction.evict(cache, 0) == 10
    assert [path.exists() for path in layers] == [True, False, False]
    assert layers[0].stat().st_mtime > 1000
    assert eviction.evict(cache, 0) == 0
    with cache.locks.use(layers[0]) as there:
        assert not there


def test_a_layer_is_replaced_once_nobody_uses_it(cache: Cache, layers: list[Path]) -> None:
    made, waits, used = cache.root / "tmp/made", threading.Event(), threading.Event()
    made.write_bytes(b"anew")

    def replace() -> None:
        with cache.locks.replacing(layers[0], waits.set, lambda: None):
            assert used.is_set()
            cache.layers.add(made, layers[0], "2026-11-24T00:00:00Z")

    with ThreadPoolExecutor(1) as pool:
        with cache.locks.use(layers[0]):
            replaced = pool.submit(replace)
            assert waits.wait(60)
            assert layers[0].read_bytes() == bytes(10)
            used.set()
        replaced.result(60)
    assert cache.layers.known_content("a", False) == cache.layers.content("a", False)
    assert layers[0].read_bytes() == b"anew"
    missing = cache.layers.path("d", False)
    with cache.locks.replacing(missing, pytest.fail, pytest.fail):
        pass
