from __future__ import annotations

import dataclasses
from pathlib import Path

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.memory import LayerBuild
from ctrain_builder.definitions import image_spec
from ctrain_builder.plan.layer_key import LayerInputs

INPUTS = LayerInputs("parent", "", "amd64", {"A": "1"}, ("%post", "  x"), {"a/b": "644 0f"})


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
