from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from ctrain_builder.cache import cache_space, estimate
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cache.memory import LayerBuild
from ctrain_builder.definitions import image_spec
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.progress import StepName
from ctrain_builder.registry.stored_layer import StoredLayer


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache(tmp_path / "cache")


@pytest.fixture
def planned(project: Path) -> BuildPlan:
    """Of its two layers the base exists."""
    spec = image_spec.find_spec(project / "definitions", "small")
    return build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, is_base: is_base, lambda _: "")


def test_the_time_is_that_of_the_last_build_with_the_same_lowest_change(cache: Cache, planned: BuildPlan) -> None:
    assert estimate.seconds(cache, planned, 1) is None
    cache.memory.keep_layer_build(planned.spec, "upper", LayerBuild(planned.layers[1].inputs, 5, 8))
    cache.memory.keep_durations(planned.spec, {"image above base": 30, "tests above base": 120})
    assert estimate.seconds(cache, planned, 1) is None, "a change of the base says nothing of one above it"
    cache.memory.keep_durations(planned.spec, {"image above upper": 2, "tests above upper": 4, "test imports": 9})
    assert estimate.seconds(cache, planned, 1) == 14
    assert estimate.seconds(cache, planned, 0) == 158


def test_a_first_build_takes_what_is_typical_of_its_layers(
    cache: Cache, planned: BuildPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert estimate.steps(cache, planned, 0) == ({}, ""), "nobody knows this layer"
    monkeypatch.setitem(estimate._TYPICAL, "upper", 40.0)
    steps, basis = estimate.steps(cache, planned, 0)
    assert list(steps) == [StepName("layer", "upper"), StepName("image", "small"), StepName("test")]
    assert steps[StepName("layer", "upper")] == 40.0 and "2 cores" in basis
    assert estimate.seconds(cache, planned, 0) is None, "a plan tells only what was seen here"
    assert estimate.steps(cache, planned, 1) == ({}, ""), "which tests are due after a change is another matter"
    cache.memory.keep_layer_build(planned.spec, "upper", LayerBuild(planned.layers[1].inputs, 5, 8))
    cache.memory.keep_durations(planned.spec, {"image above base": 30, "tests above base": 120})
    steps, basis = estimate.steps(cache, planned, 0)
    assert (list(steps.values()), basis) == ([8, 30, 120], "as the last builds took it")


def test_what_is_typical_is_known_of_the_image_of_the_demo(cache: Cache) -> None:
    spec = image_spec.find_spec(image_spec.packaged(), "pytorch-cpu-slim")
    plan = build_plan.plan_image(spec, {"MIRROR": "x"}, {}, "amd64", lambda _key, _is_base: False, lambda _: "")
    assert estimate.steps(cache, plan, 0)[0].keys() >= {StepName("layer", part.name) for part in plan.layers}


def test_where_only_tests_are_missing(cache: Cache, planned: BuildPlan) -> None:
    whole = dataclasses.replace(
        planned, layers=tuple(dataclasses.replace(part, exists=True) for part in planned.layers)
    )
    cache.memory.keep_durations(planned.spec, {"tests": 3})
    assert estimate.seconds(cache, whole, 2) == 3


def test_space_is_that_of_the_largest_moment(cache: Cache, planned: BuildPlan) -> None:
    base = cache.layers.path(planned.layers[0].key, True)
    base.write_bytes(bytes(1000))
    cache.memory.keep_layer_build(planned.spec, "upper", LayerBuild(planned.layers[1].inputs, 500))
    assert estimate.space(cache, planned, flat=False) == (500 + 1500, 0)  # while the layer is built, there is no image
    assert estimate.space(cache, planned, flat=True) == (500 + 1500, 1500)
    base.unlink()
    cache.memory.keep_layer_build(planned.spec, "base", LayerBuild(planned.layers[0].inputs, 4000))
    assert estimate.space(cache, planned, flat=False) == (9000, 4500 + 3 * 4000 - 9000)


@pytest.mark.parametrize(
    ("bootstrap", "source"),
    [("docker-archive", "image.tar"), ("oci-archive", "image.tar:v1"), ("localimage", "image.tar"), ("oci", "oci:v1")],
)
def test_the_size_of_files_that_a_base_starts_from_is_known(
    cache: Cache, project: Path, tmp_path: Path, bootstrap: str, source: str
) -> None:
    """An archive of 2 MB needed 40 GB, as an image of NVIDIA's does."""
    (tmp_path / "image.tar").write_bytes(bytes(2000))
    (tmp_path / "oci/blobs/sha256").mkdir(parents=True)
    (tmp_path / "oci/index.json").write_text("{}")
    for name in "ab":
        (tmp_path / "oci/blobs/sha256" / name).write_bytes(bytes(1000))
    definition = project / "definitions/base/base.def"
    definition.write_text(f"Bootstrap: {bootstrap}\nFrom: {tmp_path}/{source}\n%post\n  echo {{{{ VERSION }}}}\n")
    spec = image_spec.find_spec(project / "definitions", "small")

    def space() -> int:
        plan = build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, is_base: not is_base, lambda _: "")
        cache.layers.path(plan.layers[1].key, False).write_bytes(b"")
        return sum(estimate.space(cache, plan, flat=False))

    assert space() == 8000, "the layer, and its files, which take three times as much"
    (tmp_path / "image.tar").unlink()
    (tmp_path / "oci/index.json").unlink()
    assert space() > 10**9, "the plan says what is missing"


def test_a_copy_of_a_large_base_is_announced(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    base = cache.layers.path("key", True)
    base.write_bytes(b"")
    os.truncate(base, 4_100_000_000)
    monkeypatch.setattr(cache_space, "shares_blocks", lambda *_: False)
    assert estimate.copy_note(cache, base, in_use=False) == (
        f"copying 4.1 GB: there is no image with this base, and {cache.root} cannot share blocks between files"
    )
    assert "the image of the last build is in use" in estimate.copy_note(cache, base, in_use=True)
    monkeypatch.setattr(cache_space, "shares_blocks", lambda *_: True)
    assert estimate.copy_note(cache, base, in_use=False) == ""
    os.truncate(base, 1000)
    monkeypatch.setattr(cache_space, "shares_blocks", lambda *_: False)
    assert estimate.copy_note(cache, base, in_use=False) == ""


def test_what_a_registry_offers_has_its_size_and_takes_no_time_to_build(cache: Cache, planned: BuildPlan) -> None:
    base, upper = planned.layers
    offer = StoredLayer(
        upper.key, "upper", "amd64", "sha256:1", LayerContent("sha256:0", 700, "2026-11-24T00:00:00Z", "oras://r/x")
    )
    plan = dataclasses.replace(
        planned, layers=(base, dataclasses.replace(upper, exists=False, offer=offer, downloads=True))
    )
    cache.layers.path(base.key, True).write_bytes(bytes(1000))
    cache.memory.keep_layer_build(plan.spec, "upper", LayerBuild(upper.inputs, 500, 8))
    # At most: it may have to be built after all.
    assert estimate.space(cache, plan, flat=False) == (700 + 1700, 400)
    cache.memory.keep_durations(plan.spec, {"image above upper": 2, "tests above upper": 4})
    assert estimate.seconds(cache, plan, 1) == 6
