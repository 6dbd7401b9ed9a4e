from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cache import compiled
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cache.memory import LayerBuild
from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.definitions import image_spec
from ctrain_builder.files import manifest_writer
from ctrain_builder.plan import build_plan
from ctrain_runtime.cli.main import main
from ctrain_runtime.store.manifest import Manifest


@pytest.fixture
def cache(project: Path, tmp_path: Path, make_manifest: Callable[..., Manifest]) -> Cache:
    """An image of a base and a layer, the layer that its next build has made, and one that nothing needs."""
    cache = open_cache(tmp_path / "cache")
    manifest_writer.write(
        cache.root / "images/small_1.0-s.json", make_manifest(layers=[("base", "k0"), ("upper", "k1")])
    )
    spec = image_spec.find_spec(project / "definitions", "small")
    upper = build_plan.plan_image(spec, {}, {}, "amd64", lambda *_: False, lambda _: "").layers[1]
    cache.memory.keep_layer_build(spec, "upper", LayerBuild(upper.inputs, 5))
    (cache.root / "inputs/broken.json").write_text("[")
    for name in ("images/small_1.0-s.sif", "layers/k0.sif", "layers/k1.sqsh", "layers/old.sqsh"):
        (cache.root / name).write_bytes(bytes(1000))
    cache.layers.path(upper.key, False).write_bytes(bytes(1000))
    (cache.root / "layers/old.json").write_text("{}")
    return cache


@pytest.fixture
def ctrain(cache: Cache, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(action: str, *args: str) -> str:
        assert main(BUILD_VERBS, ["cache", action, "--cache", str(cache.root), *args]) == 0
        return capsys.readouterr().out

    return run


def names(cache: Cache, folder: str = "layers") -> set[str]:
    return {path.name[:4] for path in (cache.root / folder).iterdir()}


def entries(text: str) -> list[tuple[str, str, list[str]]]:
    found: list[dict[str, Any]] = json.loads(text)["entries"]
    return sorted((entry["kind"], entry["name"], entry["images"]) for entry in found)


def test_a_list_names_what_needs_each_layer(ctrain: Callable[..., str]) -> None:
    small = ["small_1.0-s"]
    assert entries(ctrain("list", "--json")) == [
        ("image", "small_1.0-s", small),
        *(("layer", name, images) for name, images in [("base", small), ("old", []), ("upper", small)]),
        ("layer", "upper", small),
    ]
    head, *rows = ctrain("list").splitlines()
    assert head.split() == ["kind", "name", "size", "used", "needed", "by"]
    assert [row.split()[-2:] for row in rows if " old " in row] == [["no", "image"]]


def test_what_was_compiled_is_needed_by_the_image_that_was_built_so(
    cache: Cache, project: Path, ctrain: Callable[..., str]
) -> None:
    spec = image_spec.find_spec(project / "definitions", "small")
    upper = build_plan.plan_image(spec, {}, {}, "amd64", lambda *_: False, lambda _: "").layers[1]
    cache.memory.keep_layer_build(spec, "upper", LayerBuild(upper.inputs, 5, recipe=upper.recipe))
    for recipe in (upper.recipe, "old"):
        compiled.path_of(cache, recipe).write_bytes(bytes(1000))
    rows = [entry for entry in entries(ctrain("list", "--json")) if entry[0] == "compiled"]
    assert rows == [("compiled", "old", []), ("compiled", "upper", ["small_1.0-s"])]
    assert ctrain("prune", "--yes").splitlines()[-1] == "removed 2 files (2.0 kB)"
    assert [path.stem for path in (cache.root / "compiled").iterdir()] == [upper.recipe]
    ctrain("clear", "--yes")
    assert list((cache.root / "compiled").iterdir()) == []


def test_prune_removes_what_no_image_needs_once_it_is_confirmed(cache: Cache, ctrain: Callable[..., str]) -> None:
    assert ctrain("prune").splitlines()[-1] == "1 file (1.0 kB); confirm with --yes"
    assert (cache.root / "layers/old.sqsh").exists()
    assert ctrain("prune", "--yes").splitlines()[-1] == "removed 1 file (1.0 kB)"
    assert "old." not in names(cache)
    assert len(names(cache)) == 3
    assert ctrain("prune") == "nothing to remove\n"


def test_prune_by_age(cache: Cache, ctrain: Callable[..., str]) -> None:
    then = time.time() - 40 * 86400
    os.utime(cache.root / "layers/k0.sif", (then, then))
    found = entries(ctrain("prune", "--unused-for", "30", "--json"))
    assert [name for _, name, _ in found] == ["base", "old"]


def test_clear_removes_all_but_what_a_build_uses(cache: Cache, ctrain: Callable[..., str]) -> None:
    (cache.root / "facts/x.json").write_text("{}")
    ctrain("clear")
    assert len(names(cache, "layers")) == 4
    with (cache.root / "layers/k0.sif").open("rb") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        assert ctrain("clear", "--yes").splitlines()[-1] == "removed 4 files (4.0 kB)"
    assert names(cache) == {"k0.s"}
    assert not [name for folder in ("images", "facts", "inputs") for name in names(cache, folder)]


def test_sizes(ctrain: Callable[..., str]) -> None:
    told = json.loads(ctrain("du", "--json"))
    assert told["sizes"]["layers"] > 0
    assert told["free"] > 0
    assert ctrain("du").splitlines()[0].split() == ["directory", "size"]


def test_sizes_do_not_lead_through_links(ctrain: Callable[..., str], cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(1_000_000))
    (cache.root / "logs/link").symlink_to(tmp_path / "large")
    (cache.root / "loop").symlink_to(cache.root)
    sizes = json.loads(ctrain("du", "--json"))["sizes"]
    assert "loop" not in sizes
    assert sizes["logs"] == 0


@pytest.mark.parametrize(
    "words", [("cache", "list"), ("upstream",), ("build", "pytorch-cpu"), ("layer", "build", "x", "-o", "y")]
)
def test_an_empty_name_is_not_the_current_directory(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """As of `--cache "$UNSET"`."""
    assert main(BUILD_VERBS, [*words, "--cache", ""]) == 64
    assert "--cache: must be a directory, not empty" in capsys.readouterr().err
