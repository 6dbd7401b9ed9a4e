from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ctrain_builder.cache import cache_space, eviction
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cache.memory import LayerBuild
from ctrain_builder.definitions import image_spec
from ctrain_builder.files import locks
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.plan.layer_key import LayerInputs
from ctrain_runtime.errors import DiskFullError
from samples.sample_images import sif

INPUTS = LayerInputs("parent", "", "amd64", {"A": "1"}, ("%post", "  x"), {"a/b": "644 0f"})


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache(tmp_path / "cache")


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


def test_too_little_space_is_said_before_anything_starts(cache: Cache) -> None:
    with pytest.raises(DiskFullError, match=r"building x needs about 1000.0 TB"):
        cache_space.require(cache, 10**15, "building x")


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


@pytest.fixture
def layers(cache: Cache) -> list[Path]:
    """Three layers of 10 bytes, the one used longest ago first."""
    paths = [cache.layers.path(name, is_base=False) for name in "abc"]
    for number, path in enumerate(paths):
        path.write_bytes(bytes(10))
        os.utime(path, (number, number))
    return paths


@pytest.mark.parametrize(("cap", "left"), [(30, "abc"), (29, "bc"), (15, "c"), (0, "")])
def test_what_was_used_longest_ago_is_evicted(cache: Cache, layers: list[Path], cap: int, left: str) -> None:
    assert eviction.evict(cache, cap) == 10 * len(left)
    assert "".join(path.stem for path in layers if path.exists()) == left


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


def test_an_evicted_image_takes_its_manifest_along(cache: Cache) -> None:
    image = cache.root / "images/x.sif"
    image.touch()
    image.with_suffix(".json").touch()
    image.write_bytes(b"x")
    eviction.evict(cache, 0)
    assert list(image.parent.iterdir()) == []


def test_eviction_while_builds_take_images(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files vanish while they are listed."""
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.0001)
    image = cache.root / "images/x.sif"

    def build() -> None:
        for number in range(300):
            with cache.locks.hold("x"):  # as every build of this image
                (tmp_path / "new").write_bytes(bytes(10))
                (tmp_path / "new").rename(image)
                cache.locks.move_out(image, tmp_path / f"taken{number}")

    with ThreadPoolExecutor(1) as pool:
        builds = pool.submit(build)
        while not builds.done():
            eviction.evict(cache, 0)
        builds.result()


def test_what_a_build_replaces_is_not_evicted(cache: Cache) -> None:
    """The name may stand for another file, which is in use, when the one that was looked at is removed."""
    image = cache.root / "images/x.sif"
    image.write_bytes(bytes(10))
    with cache.locks.hold("x"):
        assert eviction.evict(cache, 0) == 10
    assert eviction.evict(cache, 0) == 0


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


def test_what_a_layer_was_made_of_is_remembered(cache: Cache, project: Path) -> None:
    spec = image_spec.find_spec(project / "definitions", "small")
    assert cache.memory.layer_build(spec, "upper") is None
    cache.memory.keep_layer_build(spec, "upper", LayerBuild(INPUTS, 7, 12))
    assert cache.memory.layer_build(spec, "upper") == LayerBuild(INPUTS, 7, 12)
    cache.memory.keep_layer_build(spec, "upper", LayerBuild(INPUTS, 7))  # it was only taken from the cache
    assert cache.memory.layer_build(spec, "upper") == LayerBuild(INPUTS, 7, 12)
    cache.memory._layer_build(spec, "upper").write_text("[1")
    assert cache.memory.layer_build(spec, "upper") is None
    assert list((cache.root / "tmp").iterdir()) == []


def test_logs_are_for_their_owner(cache: Cache) -> None:
    before = os.umask(0)
    try:
        assert cache.files.new_log("x").stat().st_mode & 0o777 == 0o600
        cache.files.new_log("x").chmod(0o644)  # of an older version
        assert cache.files.new_log("x").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_the_content_of_a_layer_is_recorded_when_it_is_added(cache: Cache) -> None:
    made = cache.root / "tmp/made"
    made.write_bytes(b"layer")
    cache.layers.add(made, cache.layers.path("key", False), "2026-11-22T08:00:00Z")
    digest = f"sha256:{hashlib.sha256(b'layer').hexdigest()}"
    assert cache.layers.known_content("key", False) == LayerContent(digest, 5, "2026-11-22T08:00:00Z")
    base = cache.layers.path("base", True)
    base.write_bytes(sif(data=b"system"))
    assert cache.layers.known_content("base", True) is None
    assert cache.layers.content("base", True).size == len(b"system")  # of its partition
    assert cache.layers.known_content("base", True) == cache.layers.content("base", True)


def test_a_layer_of_the_same_key_with_other_content_is_described_again(cache: Cache) -> None:
    for content in (b"one", b"another"):
        made = cache.root / "tmp/made"
        made.write_bytes(content)
        cache.layers.add(made, cache.layers.path("key", False), "")
        assert cache.layers.content("key", False).digest == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_layer_is_evicted_with_its_description(cache: Cache) -> None:
    (cache.root / "tmp/made").write_bytes(b"layer")
    cache.layers.add(cache.root / "tmp/made", cache.layers.path("key", False), "")
    eviction.evict(cache, 0)
    assert list((cache.root / "layers").iterdir()) == []


def test_durations_are_kept_by_step(cache: Cache, project: Path) -> None:
    spec = image_spec.find_spec(project / "definitions", "small")
    assert cache.memory.durations(spec) == {}
    cache.memory.keep_durations(spec, {"image above upper": 2.04, "test imports": 1})
    cache.memory.keep_durations(spec, {"image above upper": 3})
    assert cache.memory.durations(spec) == {"image above upper": 3, "test imports": 1}


def test_a_layer_from_the_cache_keeps_the_time_that_it_once_took(cache: Cache, project: Path) -> None:
    spec = image_spec.find_spec(project / "definitions", "small")
    cache.memory.keep_layer_build(spec, "upper", LayerBuild(INPUTS, 5, 61))
    other = dataclasses.replace(INPUTS, parent="other")
    cache.memory.keep_layer_build(spec, "upper", LayerBuild(other, 6))
    assert cache.memory.layer_build(spec, "upper") == LayerBuild(other, 6, 61)


def test_whether_copies_share_blocks_is_as_cp_finds(cache: Cache) -> None:
    layer = cache.layers.path("key", False)
    layer.write_bytes(bytes(8192))
    copy = cache.root / "copy"
    argv = ["cp", "--reflink=always", str(layer), str(copy)]
    done = subprocess.run(argv, capture_output=True)
    assert cache_space.shares_blocks(cache, layer) == (done.returncode == 0)
    assert list((cache.root / "tmp").iterdir()) == []
