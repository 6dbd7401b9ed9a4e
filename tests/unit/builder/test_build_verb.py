from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.files import manifest_writer
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.layers.shared_layers import SharedLayers
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.registry.stored_layer import StoredLayer
from ctrain_builder.store.init import init_store
from ctrain_runtime.errors import ConfigError, EngineError, UsageError
from ctrain_runtime.store.manifest import BASE_BUILT_LABEL, SCHEMA, Layer, Manifest
from samples import built_image
from samples.programs import answer, give_away
from samples.sample_images import sif

Ctrain = Callable[..., int]


def _told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def _finish(plan: dict[str, Any], cache: Path, make_manifest: Callable[..., Manifest], **facts: Any) -> None:
    """Put an image that was built as planned, and its layers, into the cache."""
    layers = [(layer["definition"], layer["key"]) for layer in plan["layers"]]
    stem = f"{plan['name']}_{plan['tag']}-{plan['stack']}"
    manifest = make_manifest(layers=layers, **facts)
    if manifest.tested:
        digest = plan["base"].partition("@")[2]
        planned = built_image.plan(cache.parent / "project/definitions", plan["name"], plan["tag"], digest)
        manifest = built_image.tested(open_cache(cache), planned, manifest)
    (cache / f"images/{stem}.sif").write_bytes(bytes(manifest.size))
    manifest_writer.write(cache / f"images/{stem}.json", manifest)
    for number, (_, key) in enumerate(layers):
        (cache / "layers" / f"{key}.{'sqsh' if number else 'sif'}").touch()


def test_the_plan_of_one_image(ctrain: Ctrain, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctrain("build", "small", "--plan") == 0
    head, base, upper, summary = capsys.readouterr().out.splitlines()
    assert head.split() == ["image", "layer", "state", "why"]
    assert base.split() == ["small", "1.0", "base", "new"]
    assert upper.split() == ["upper", "new"]
    assert summary.startswith("1 image to build; needs at most ")
    assert "are free in" in summary
    assert ctrain("build", "small", "--plan", "--json") == 0
    told = _told(capsys)
    (image,) = told["images"]
    assert (image["name"], image["tag"], image["bootstrap"], image["needs_build"]) == (
        "small",
        "1.0",
        "debootstrap",
        True,
    )
    assert [(layer["definition"], layer["state"]) for layer in image["layers"]] == [("base", "new"), ("upper", "new")]
    assert told["needed"] > 0
    assert told["free"] > 0


def test_an_image_that_a_newer_ctrain_has_built_is_built_again(
    ctrain: Ctrain, tmp_path: Path, make_manifest: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]
) -> None:
    """In a cache that both use. Its layers are kept."""
    assert ctrain("build", "small", "--plan", "--json") == 0
    _finish(_told(capsys)["images"][0], tmp_path / "cache", make_manifest)
    assert ctrain("build", "small", "--plan") == 0
    assert "nothing to build" in capsys.readouterr().out
    path = tmp_path / "cache/images/small_1.0-s.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": SCHEMA + 1}))
    assert ctrain("build", "small", "--plan") == 0
    out = capsys.readouterr().out
    assert "its manifest cannot be read" in out and "1 image to build" in out
    assert ctrain("build", "small", "--plan", "--json") == 0
    assert [layer["state"] for layer in _told(capsys)["images"][0]["layers"]] == ["ok", "ok"]


def test_singularity_plans_and_does_not_build(
    ctrain: Ctrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin/apptainer").unlink()
    answer(tmp_path / "bin", "singularity", version="singularity-ce version 4.5.1\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert ctrain("build", "small", "--plan") == 0
    capsys.readouterr()
    assert ctrain("build", "small") == EngineError.exit_code
    assert "builds need Apptainer, and here is singularity 4.5.1 (" in capsys.readouterr().err


def test_the_plan_for_other_cpus(ctrain: Ctrain, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctrain("build", "small", "--plan", "--json") == 0
    (here,) = _told(capsys)["images"]
    assert ctrain("build", "small", "--plan", "--json", "--arch", "ppc64le") == 0
    (there,) = _told(capsys)["images"]
    assert there["arch"] == "ppc64le" != here["arch"]
    assert not {layer["key"] for layer in there["layers"]} & {layer["key"] for layer in here["layers"]}
    assert ctrain("build", "small", "--arch", "ppc64le") == UsageError.exit_code
    assert "images for ppc64le are built on machines of that kind. Add --plan" in capsys.readouterr().err


@pytest.mark.usefixtures("matrix")
def test_the_plan_of_the_whole_matrix(ctrain: Ctrain, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctrain("build", "--plan", "--offline") == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines()]
    assert [row[:4] for row in rows if row[0] in ("small", "other")] == [
        ["small", "1.0", "base", "new"],
        ["small", "0.9", "base", "new"],
        ["other", "7", "far", "unknown"],
    ]
    assert "the digest of nvcr.io/far/away:7 is not known" in said
    assert rows[-1][:8] == ["2", "images", "to", "build;", "1", "image", "can't", "be"]


def test_what_changed_since_the_last_build_is_named(
    ctrain: Ctrain,
    project: Path,
    tmp_path: Path,
    make_manifest: Callable[..., Manifest],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ctrain("build", "small", "--plan", "--json")
    (image,) = _told(capsys)["images"]
    _finish(image, tmp_path / "cache", make_manifest)
    assert ctrain("build", "--plan") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 image up to date, nothing to build"
    monkey = project / "definitions/upper/upper.def"
    monkey.write_text(monkey.read_text().replace("COLOUR=red", "COLOUR=blue"))
    assert ctrain("build", "--plan", "--json") == 0
    (image,) = _told(capsys)["images"]
    assert (image["state"], image["needs_build"]) == ("stale", True)
    assert [layer["state"] for layer in image["layers"]] == ["ok", "new"]


def test_an_image_whose_tests_failed_is_planned_again(
    ctrain: Ctrain, tmp_path: Path, make_manifest: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]
) -> None:
    ctrain("build", "small", "--plan", "--json")
    (image,) = _told(capsys)["images"]
    _finish(image, tmp_path / "cache", make_manifest, passed=False)
    assert ctrain("build", "--plan") == 0
    *_, row, summary = capsys.readouterr().out.splitlines()
    assert row.split(maxsplit=2) == ["(image)", "stale", "failed: imports"]
    assert summary.startswith("1 image to build")


def test_images_that_are_up_to_date_are_left_alone(
    ctrain: Ctrain, tmp_path: Path, make_manifest: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]
) -> None:
    ctrain("build", "small", "--plan", "--json")
    _finish(_told(capsys)["images"][0], tmp_path / "cache", make_manifest)
    assert ctrain("build", "small") == 0
    assert "small 1.0-s is up to date, nothing to do" in capsys.readouterr().out
    assert ctrain("build", "--all", "--json") == 0
    (image,) = _told(capsys)["images"]
    assert (image["name"], image["fresh"], image["manifest"]["tag"]) == ("small", False, "1.0")


def test_a_cache_above_its_cap_is_cut(
    ctrain: Ctrain,
    tmp_path: Path,
    make_manifest: Callable[..., Manifest],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ctrain("build", "small", "--plan", "--json")
    _finish(_told(capsys)["images"][0], tmp_path / "cache", make_manifest)
    old = tmp_path / "cache/layers/old.sqsh"
    old.write_bytes(bytes(1000))
    monkeypatch.setenv("CTRAIN_CACHE_SIZE", "2kB")
    assert ctrain("build", "small") == 0
    assert old.exists()
    assert ctrain("build", "small", "--cache-size", "999B") == 0
    assert not old.exists()
    assert len(list((tmp_path / "cache/layers").iterdir())) == 2


@pytest.mark.usefixtures("matrix")
def test_only_what_no_store_has_is_planned(
    ctrain: Ctrain,
    tmp_path: Path,
    make_manifest: Callable[..., Manifest],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unpublished plan can't be known to be published; another name, tag, stack, kind or layer is another image."""

    def left() -> list[str]:
        assert ctrain("build", "--unpublished", "--plan", "--json", "--offline") == 0
        return [f"{image['name']}:{image['tag']}" for image in _told(capsys)["images"]]

    monkeypatch.setenv("CTRAIN_SITE", "local")
    store = tmp_path / "store"
    init_store(store)
    monkeypatch.setenv("CTRAIN_STORE", str(store))
    assert left() == ["small:1.0", "small:0.9", "other:7"]
    assert ctrain("build", "small", "--plan", "--json") == 0
    (image,) = _told(capsys)["images"]
    layers = tuple((layer["definition"], layer["key"]) for layer in image["layers"])
    planned = dataclasses.replace(make_manifest(layers=layers), release=1)
    for manifest in (
        dataclasses.replace(planned, flat=True),
        dataclasses.replace(planned, name="other"),
        dataclasses.replace(planned, tag="2.0"),
        dataclasses.replace(planned, stack="x"),
        dataclasses.replace(make_manifest(layers=(*layers[:1], ("upper", "k"))), release=2),
    ):
        _publish(store, manifest)
        assert left() == ["small:1.0", "small:0.9", "other:7"]
    _publish(store, planned)
    assert left() == ["small:0.9", "other:7"]
    assert ctrain("build", "small", "--unpublished") == 0
    assert capsys.readouterr().out == "nothing to build\n"


def test_an_image_on_an_old_base_is_planned_although_it_is_published(
    ctrain: Ctrain,
    tmp_path: Path,
    make_manifest: Callable[..., Manifest],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an empty cache: the date is that of the manifest. A base that was built again, and is the same, is young."""

    def is_left(*options: str) -> bool:
        assert ctrain("build", "--unpublished", "--plan", "--json", *options) == 0
        return bool(_told(capsys)["images"])

    def days_ago(days: float) -> str:
        return manifest_writer.utc(time.time() - days * 86400)

    monkeypatch.setenv("CTRAIN_SITE", "local")
    monkeypatch.setenv("CTRAIN_STORE", str(tmp_path / "store"))
    init_store(tmp_path / "store")
    assert ctrain("build", "small", "--plan", "--json") == 0
    (image,) = _told(capsys)["images"]
    made = tmp_path / "cache/tmp/made"
    made.write_bytes(sif())
    old, new = (f"sha256:{hashlib.sha256(content).hexdigest()}" for content in (b"squashfs", b"other packages"))
    upper = Layer("upper", image["layers"][1]["key"], 1)
    first = dataclasses.replace(
        make_manifest(layers=()),
        release=1,
        built=days_ago(40),
        layers=(Layer("base", image["layers"][0]["key"], 8, old), upper),
    )
    _publish(tmp_path / "store", first)
    assert (is_left(), is_left("--base-max-age", "41"), is_left("--base-max-age", "30")) == (False, False, True)
    assert is_left("--rebuild=upper")
    again = dataclasses.replace(first, built=days_ago(1), labels={BASE_BUILT_LABEL: days_ago(35)})
    _publish(tmp_path / "store", again)  # a change of code
    assert (is_left("--base-max-age", "36"), is_left("--base-max-age", "30")) == (False, True)
    base = Layer("base", image["layers"][0]["key"], 8, new)
    _publish(tmp_path / "store", dataclasses.replace(again, layers=(base, upper)))
    cache = open_cache(tmp_path / "cache")
    cache.layers.add(made, cache.layers.path(base.key, is_base=True), days_ago(2))
    assert is_left("--base-max-age", "30"), "the published one has other packages"
    _publish(tmp_path / "store", again)
    assert not is_left("--base-max-age", "30")


def _publish(store: Path, manifest: Manifest) -> None:
    (store / manifest.file_name).touch()
    manifest_writer.write(store / manifest.file_name.replace(".sif", ".json"), manifest)


def test_without_a_store_all_is_unpublished_and_one_that_is_gone_is_an_error(
    ctrain: Ctrain, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CTRAIN_SITE", "local")
    monkeypatch.delenv("CTRAIN_STORE", raising=False)
    assert ctrain("build", "--unpublished", "--plan") == 0
    assert "1 image to build" in capsys.readouterr().out
    monkeypatch.setenv("CTRAIN_STORE", str(tmp_path / "away"))
    assert ctrain("build", "--unpublished", "--plan") == 76
    assert "away does not exist" in capsys.readouterr().err


def test_only_what_differs_from_a_commit_is_planned(
    ctrain: Ctrain, matrix: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"NAME": "kim", "EMAIL": "kim@site"}.items():
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", value)
    for argv in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "one"]):
        subprocess.run(["git", *argv], cwd=matrix, check=True)
    assert ctrain("build", "--changed-since", "HEAD", "--plan", "--offline") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing to build"
    assert ctrain("build", "--changed-since", "HEAD", "--offline") == 0
    assert "nothing to build" in capsys.readouterr().out
    images = matrix / "definitions/images.yaml"
    images.write_text(images.read_text().replace("blue", "green").replace('"0.9"', '"0.8": {}, "0.9"'))
    assert ctrain("build", "--changed-since", "HEAD", "--plan", "--json", "--offline") == 0
    found = {image["tag"]: [layer["why"] for layer in image["layers"]] for image in _told(capsys)["images"]}
    assert found == {"0.8": [[], []], "0.9": [["not in the cache"], ["argument COLOUR blue -> green"]]}
    assert ctrain("build", "small:1.0", "--changed-since", "HEAD", "--plan", "--json") == 0
    assert _told(capsys)["images"] == []
    images.write_text(images.read_text().replace('"1.0": {}', '"1.0": {python: "3.12"}'))
    assert ctrain("build", "small:1.0", "--changed-since", "HEAD", "--plan", "--json") == 0
    assert len(_told(capsys)["images"]) == 1, "its tests expect something else"


@pytest.mark.usefixtures("matrix")
@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("build",), 64, "no image given. Name one or more of: other, small; or use --all"),
        (("build", "small", "--all"), 64, "--all takes no image names"),
        (("build", "small:1.0", "--tag", "2.0"), 64, "'small:1.0' has an empty tag, or --tag is also given"),
        (("build", "small:"), 64, "'small:' has an empty tag"),
        (("build", "small", "other", "--tag", "2.0"), 64, "--tag needs exactly one image. Use IMAGE:TAG"),
        (("build", "smal"), 64, "has no image 'smal'. Did you mean 'small'? It has: other, pytorch-cpu,"),
        (("build", "small", "--build-arg", "COLOUR"), 64, "--build-arg must be NAME=VALUE, not 'COLOUR'"),
        (("build", "small", "--build-arg", "=red"), 64, "--build-arg must be NAME=VALUE, not '=red'"),
        (("build", "small", "--plan", "--build-arg", "X=1"), 64, "uses argument X"),
        (("build", "--all", "--build-arg", "VERSION=2"), 64, "VERSION is the tag of image small"),
        (("build", "--plan", "--changed-since", "HEAD"), 64, "is not in a readable git repository"),
        (("build", "--all", "--jobs", "0"), 64, "argument --jobs: must be a positive integer, not '0'"),
        (("build", "--all", "--jobs", "x"), 64, "argument --jobs: must be a positive integer, not 'x'"),
        (("build", "small", "--cache-size", "huge"), 64, "'huge' is not a size"),
        (("build", "small", "--cache-from", "r.example.org/x"), 64, "'r.example.org/x' is not a repository of a reg"),
        (("build", "small", "--cache-from", ""), 64, "'' is not a repository of a registry. Write it as oras://HOST"),
        (("build", "small", "--cache-to", ""), 64, "'' is not a repository of a registry. Write it as oras://HOST"),
        (("build", "small", "--cache-to", "oras://r.example.org"), 64, "'oras://r.example.org' is not a repository"),
        (("build", "small", "--cache-to", "oras://r/x", "--offline"), 64, "tested images. Remove --offline"),
        (("build", "small", "--cache-to", "oras://r/x", "--tests", "later"), 64, "--cache-to uploads layers of tested"),
        (("build", "small", "--cache-to", "oras://r/x", "--build-arg", "COLOUR=x"), 64, "which may be secret. Put the"),
        (("build", "other", "--offline"), 79, "the digest of nvcr.io/far/away:7 is not known"),
        (("publish", "small", "--store", "s"), 78, "small 1.0 is not built and tested. Run: ctrain build small:1.0"),
        (("publish", "small:2.0", "--flatten", "--store", "s"), 78, "Run: ctrain build small:2.0 --flatten"),
        (("publish", "small"), 64, "no store named"),
    ],
)
def test_mistakes_are_one_line(
    ctrain: Ctrain,
    args: tuple[str, ...],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CTRAIN_STORE", raising=False)
    assert ctrain(*args) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ctrain: ")
    assert message in line


def test_layers_to_build_again_are_planned_with_the_reason(
    ctrain: Ctrain, tmp_path: Path, make_manifest: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]
) -> None:
    ctrain("build", "small", "--plan", "--json")
    (image,) = _told(capsys)["images"]
    _finish(image, tmp_path / "cache", make_manifest)
    cache = open_cache(tmp_path / "cache")
    for layer, is_base in zip(image["layers"], (True, False)):
        made = cache.root / "tmp/made"
        made.write_bytes(sif())
        cache.layers.add(made, cache.layers.path(layer["key"], is_base), manifest_writer.utc(time.time() - 40 * 86400))

    def rows(*options: str) -> list[str]:
        assert ctrain("build", "small", "--plan", *options) == 0
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[1:3]]

    assert rows() == ["small 1.0 base ok base built 40 d ago", "upper ok"]
    assert rows("--base-max-age", "41") == rows()
    parent = "upper stale parent was built again"
    assert rows("--base-max-age", "30") == ["small 1.0 base stale older than 30 days", parent]
    assert rows("--rebuild") == ["small 1.0 base stale --rebuild", "upper stale --rebuild"]
    assert rows("--rebuild=upper") == ["small 1.0 base ok base built 40 d ago", "upper stale --rebuild"]
    assert ctrain("build", "small", "--rebuild=uper") == 64
    assert "--rebuild: no layer 'uper' in these images. Known: base, upper" in capsys.readouterr().err


LAYERS = "layer_caches: [{}]\n"


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the administrators' site files."""
    folder = tmp_path / "etc"
    folder.mkdir()
    monkeypatch.setattr("ctrain_runtime.site.files.SYSTEM_DIR", folder)
    monkeypatch.setenv("CTRAIN_SITE", "local")
    return folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The sources that builds have, in turn."""
    found: list[tuple[str, ...]] = []

    def remember(self: SharedLayers, plan: BuildPlan, *_: object) -> BuildPlan:
        found.append(self.sources)
        return plan

    monkeypatch.setattr(SharedLayers, "with_offers", remember)
    return found


def test_layers_come_from_where_the_command_line_or_else_the_site_says(
    ctrain: Ctrain, etc: Path, asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert ctrain("build", "small", "--plan") == 0
    (etc / "local.yaml").write_text(LAYERS.format("oras://r.example.org/a"))
    assert ctrain("build", "small", "--plan") == 0
    assert ctrain("build", "small", "--plan", "--cache-from", "oras://r/b", "--cache-from", "oras://r/c") == 64
    assert ctrain("build", "small", "--plan", "--cache-from", "oras://r:1/b", "--cache-from", "oras://r:1/c") == 0
    assert ctrain("build", "small", "--plan", "--offline") == 0
    assert asked == [("oras://r.example.org/a",), ("oras://r:1/b", "oras://r:1/c")]
    # Not where a repository says that was just cloned.
    monkeypatch.chdir(tmp_path)
    Path("ctrain.yaml").write_text(LAYERS.format("oras://r.example.org/evil"))
    assert ctrain("build", "small", "--plan") == ConfigError.exit_code


def test_where_signatures_are_required_only_the_site_names_registries(
    ctrain: Ctrain, etc: Path, asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    signed = "require_signature: true\ntrusted_keys: [/key]\n"
    (etc / "local.yaml").write_text(signed + LAYERS.format("oras://r.example.org/a"))
    assert ctrain("build", "small", "--plan") == 0
    assert ctrain("build", "small", "--plan", "--cache-from", "oras://r.example.org/a") == 0
    assert asked == [("oras://r.example.org/a",)] * 2
    capsys.readouterr()
    assert ctrain("build", "small", "--plan", "--cache-from", "oras://r.example.org/b") == UsageError.exit_code
    assert "site local requires signatures, which layers of registries do not have" in capsys.readouterr().err


def test_what_another_member_of_the_group_has_downloaded_is_built_again(
    ctrain: Ctrain, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless one takes layers from there oneself: what others name on their command lines is their own business."""
    ctrain("build", "small", "--plan", "--json")
    (image,) = _told(capsys)["images"]
    cache = open_cache(tmp_path / "cache")
    for layer, is_base in zip(image["layers"], (True, False)):
        made = cache.root / "tmp/made"
        made.write_bytes(sif())
        cache.layers.add(made, cache.layers.path(layer["key"], is_base), "2026-11-24T00:00:00Z", "oras://r:1/theirs")
    monkeypatch.setattr(SharedLayers, "with_offers", lambda _self, plan, *_: plan)

    def states(*options: str) -> list[tuple[str, str]]:
        assert ctrain("build", "small", "--plan", "--json", *options) == 0
        (image,) = _told(capsys)["images"]
        return [(layer["state"], " ".join(layer["why"])) for layer in image["layers"]]

    assert states() == [("ok", "")] * 2, "one's own"
    give_away(cache.layers.path(image["layers"][1]["key"], False), 4712)
    assert states() == [("ok", ""), ("stale", "downloaded by user 4712 from oras://r:1/theirs")]
    assert states("--cache-from", "oras://r:1/theirs") == [("ok", "")] * 2


def test_the_plan_tells_what_is_downloaded(
    ctrain: Ctrain, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offers(_self: SharedLayers, plan: BuildPlan, *_: object) -> BuildPlan:
        digests = [f"sha256:{letter * 64}" for letter in "ab"]
        found = [
            StoredLayer(
                layer.key,
                layer.name,
                "amd64",
                parent,
                LayerContent(digest, size, "2026-11-24T00:00:00Z", "oras://r:1/x"),
            )
            for layer, digest, size, parent in zip(plan.layers, digests, (311_000_000, 12_000_000), ("", digests[0]))
        ]
        return build_plan.with_offers(plan, lambda _: "", lambda part, _: found[part.name == "upper"])

    monkeypatch.setattr(SharedLayers, "with_offers", offers)
    options = ("build", "small", "--plan", "--cache-from", "oras://r:1/x")
    assert ctrain(*options) == 0
    _, base, upper, summary = capsys.readouterr().out.splitlines()
    assert base.split(maxsplit=3)[2:] == ["base", "download  311 MB from oras://r:1/x"]
    assert upper.split(maxsplit=1) == ["upper", "download  12.0 MB from oras://r:1/x"]
    assert summary.startswith("1 image to build; 323 MB to download; needs at most ")
    assert ctrain(*options, "--json") == 0
    (image,) = _told(capsys)["images"]
    assert [layer["download"] for layer in image["layers"]] == [
        {"from": "oras://r:1/x", "size": 311_000_000},
        {"from": "oras://r:1/x", "size": 12_000_000},
    ]
    assert [layer["state"] for layer in image["layers"]] == ["download"] * 2


@pytest.mark.parametrize(
    ("name", "is_told"),
    [("HF_TOKEN", True), ("DB_PASSWORD", True), ("ApiKey", True), ("KEYS", False), ("COLOUR", False)],
)
def test_arguments_that_look_secret_are_named(
    ctrain: Ctrain, project: Path, capsys: pytest.CaptureFixture[str], name: str, is_told: bool
) -> None:
    definition = project / "definitions/upper/upper.def"
    definition.write_text(definition.read_text().replace("COLOUR", name))
    assert ctrain("build", "small", "--plan", "--build-arg", f"{name}=x") == 0
    told = f"the value of --build-arg {name} gets into the image, its labels, logs and plans. If it is secret: --secret"
    assert (told in capsys.readouterr().err) == is_told


def test_secrets_are_files(ctrain: Ctrain, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctrain("build", "small", "--plan", "--secret", "hub") == 64
    assert "--secret must be NAME=FILE, not 'hub'" in capsys.readouterr().err
    assert ctrain("build", "small", "--plan", "--secret", f"hub={tmp_path}/nothing") == 64
    assert f"--secret hub: cannot read {tmp_path}/nothing: No such file" in capsys.readouterr().err
    (tmp_path / "token").write_text("correct-horse")
    assert ctrain("build", "small", "--plan", "--json") == 0
    plain = _told(capsys)["images"]
    assert ctrain("build", "small", "--plan", "--json", "--secret", f"hub={tmp_path}/token") == 0
    assert _told(capsys)["images"] == plain, "it is in no key, and in no plan"
