"""The base of an image is asked for what its tests want to know, while the layers above it are made."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctrain_builder.build import Builder, WhichTests
from ctrain_builder.build_host.settings import BuildHost
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.image import sbom
from ctrain_builder.plan.build_plan import PlannedLayer
from ctrain_builder.testing import planned_tests, tests
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import BuildError
from samples import built_image
from samples.sample_images import sif

FACTS = {"torch": "2.13.0"}
PROGRESS: Any = SimpleNamespace(expect=lambda *_: None, tick=lambda: None)


class Made(Exception):
    """The layers are there, and the image would be put together now."""


def build(project: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch, which: WhichTests, answered: bool) -> str:
    """Build; the upper layer is made only once the base was asked, if it is `answered`. The digest of the base."""
    asked = threading.Event()

    def ask(*_: object) -> dict[str, str]:
        asked.set()
        if not answered:
            raise BuildError("the image can't be examined")
        return FACTS

    def make(_: Builder, _plan: object, part: PlannedLayer, below: list[Path], target: Path, _used: object) -> None:
        assert not below or which is WhichTests.LATER or asked.wait(60)
        with cache.work.create() as work:
            (work / "made").write_bytes(sif(data=b"base") if part.definition.is_base else b"upper")
            cache.layers.add(work / "made", target, "2026-11-24T00:00:00Z")

    def stop(*_: object) -> None:
        raise Made

    monkeypatch.setattr(tests, "base_facts", ask)
    monkeypatch.setattr(sbom, "require", lambda: None)
    monkeypatch.setattr("ctrain_builder.build.require_overlays", lambda _: None)
    monkeypatch.setattr(Builder, "_make_layer", make)
    monkeypatch.setattr(Builder, "_assemble", stop)
    plan = built_image.plan(project / "definitions")
    builder = Builder(
        cache, Engine("apptainer", "/nowhere", "1.4.5"), BuildHost({}, (), None, {}), PROGRESS, tests=which
    )
    with pytest.raises(Made):
        builder.build(plan)
    assert asked.is_set() == (which is not WhichTests.LATER)
    return cache.layers.content(plan.keys[0], True).digest


def nobody() -> dict[str, str]:
    raise AssertionError("it is known")


def test_the_answer_is_there_for_the_tests(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(tmp_path / "cache")
    base = build(project, cache, monkeypatch, WhichTests.NEEDED, answered=True)
    assert planned_tests.base_facts(cache, base, nobody) == FACTS


def test_a_base_that_does_not_answer_is_asked_again(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the tests, which tell."""
    cache = open_cache(tmp_path / "cache")
    base = build(project, cache, monkeypatch, WhichTests.NEEDED, answered=False)
    assert planned_tests.base_facts(cache, base, lambda: FACTS) == FACTS


def test_who_tests_later_asks_later(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(project, open_cache(tmp_path / "cache"), monkeypatch, WhichTests.LATER, answered=True)
