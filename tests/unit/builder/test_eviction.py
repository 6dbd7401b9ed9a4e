from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctrain_builder.build import Builder
from ctrain_builder.build_host.settings import BuildHost
from ctrain_builder.cache import eviction
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.definitions import image_spec
from ctrain_builder.files import locks
from ctrain_builder.layers.container import Container
from ctrain_builder.plan import build_plan
from ctrain_runtime.engines.apptainer import Engine
from samples.long_mode import often


@pytest.mark.parametrize(("cap", "left"), [(30, "abc"), (29, "bc"), (15, "c"), (0, "")])
def test_what_was_used_longest_ago_is_evicted(cache: Cache, layers: list[Path], cap: int, left: str) -> None:
    assert eviction.evict(cache, cap) == 10 * len(left)
    assert "".join(path.stem for path in layers if path.exists()) == left


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
        for number in range(often(300, 100)):
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


def test_a_layer_is_evicted_with_its_description(cache: Cache) -> None:
    (cache.root / "tmp/made").write_bytes(b"layer")
    cache.layers.add(cache.root / "tmp/made", cache.layers.path("key", False), "")
    eviction.evict(cache, 0)
    assert list((cache.root / "layers").iterdir()) == []


def test_a_new_layer_is_in_use_until_its_build_has_ended(
    cache: Cache, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def make(_: Builder, container: Container, *__: object) -> Path:
        (container.work / "made").write_bytes(b"layer")
        return container.work / "made"

    monkeypatch.setattr(Builder, "_make_content", make)
    for step in ("_test_layer", "_may_keep", "_remember_passes", "_compare"):  # nothing can be run here
        monkeypatch.setattr(Builder, step, lambda *_: {})
    step_view = SimpleNamespace(end=lambda *_: None)
    progress: Any = SimpleNamespace(tick=lambda: None, begin=lambda *_: step_view)
    spec = image_spec.find_spec(project / "definitions", "small")
    plan = build_plan.plan_image(spec, {}, {}, "amd64", lambda *_: False, lambda _: "")
    builder = Builder(cache, Engine("apptainer", "/nowhere", "1.4.5"), BuildHost({}, (), None, {}), progress)
    with contextlib.ExitStack() as used:
        made = builder._layer(plan, plan.layers[1], [cache.root / "base.sif"], "", used)
        eviction.evict(cache, 0)  # as another build does
        assert made.read_bytes() == b"layer"
    assert eviction.evict(cache, 0) == 0 and not made.exists()
