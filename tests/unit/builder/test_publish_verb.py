from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cache.memory import LayerBuild
from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.files import manifest_writer
from ctrain_builder.image.state import CachedImage, Stage
from ctrain_builder.store.init import init_store
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.registry.client import RegistryClient
from ctrain_runtime.store.manifest import Manifest, read_manifest
from ctrain_runtime.store.store import open_store
from samples import built_image
from samples.sample_images import sif


@pytest.fixture
def publish(
    ctrain: Callable[..., int], project: Path, tmp_path: Path, make_manifest: Callable[..., Manifest]
) -> Callable[..., int]:
    """publish(OPTIONS) of an image that is in the cache, as builds leave it there, to the store `store`."""
    cache = open_cache(tmp_path / "cache")
    plan = built_image.plan(project / "definitions")
    image = built_image.put(cache, plan, make_manifest)
    manifest = built_image.tested(cache, plan, read_manifest(image.with_suffix(".json")))
    manifest_writer.write(image.with_suffix(".json"), manifest)
    init_store(tmp_path / "store")
    return lambda *options: ctrain("publish", "small", "--store", "store", *options)


def test_an_image_is_published_under_a_channel(publish: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert publish("--channel", "dev") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "channel dev of small is now 1.0-s-r1"


def test_the_catalogue_follows(publish: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(BUILD_VERBS, ["store", "catalogue", "--store", "store"]) == 0
    capsys.readouterr()
    assert publish() == 0
    assert f"updated {Path('store/catalogue.html').absolute()}" in capsys.readouterr().err
    assert "1.0-s-r1" in Path("store/catalogue.html").read_text()


@pytest.mark.parametrize("length", [12, 13, 64])
@pytest.mark.parametrize("which", [0, 1])
def test_only_the_image_that_was_approved(
    publish: Callable[..., int], tmp_path: Path, which: int, length: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its digest in the cache, or by that of its file; before anything is copied, or while it is."""
    image = tmp_path / "cache/images/small_1.0-s.sif"
    digests = read_manifest(image.with_suffix(".json")).digest, file_digest(image)
    assert [digest.partition(":")[0] for digest in digests] == ["sha256-regions", "sha256"]
    kind, _, value = digests[which].partition(":")
    approved = f"{kind}:{value[:length]}"
    another = f"{kind}:{'1' if value.startswith('0') else '0'}{value[1:length]}"
    for options in (["--dry-run"], ["--channel", "prod"]):
        assert publish("--digest", another, *options) == 64
        said = capsys.readouterr().err
        assert f"digest mismatch: {image} is {digests[which]}, not {another}. It was built again since" in said
    assert list(Path("store").rglob("*small*")) == []
    assert publish("--digest", approved, "--dry-run") == 0
    assert publish("--digest", approved) == 0
    (published,) = open_store(Path("store")).images()
    assert published.manifest.digest == digests[1]
    assert publish("--digest", another, "--channel", "prod") == 64, "although it is published already"
    assert publish("--digest", approved, "--channel", "dev") == 0
    (published,) = open_store(Path("store")).images()
    assert published.channels == ("dev",)


@pytest.mark.parametrize("place", ["cache/images/small_1.0-s.sif", "store/small_1.0-s-py3-r1.sif"])
def test_the_digest_that_show_prints_is_taken(
    publish: Callable[..., int], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish()
    capsys.readouterr()
    assert main(RUNTIME_VERBS, ["images", "show", str(tmp_path / place)]) == 0
    (shown,) = re.findall(r"^image .*(sha256\S*)$", capsys.readouterr().out, re.MULTILINE)
    assert publish("--digest", shown, "--dry-run") == 0


@pytest.mark.parametrize("text", ["", "sha256:", "sha256-regions:9f2c", f"sha256:{'0' * 65}", "9f2c41d0a1b2", "prod"])
def test_what_is_not_a_digest_is_refused(
    publish: Callable[..., int], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish("--digest", text) == 64
    what = "must be sha256:HEX or sha256-regions:HEX with 12 to 64 hexadecimal digits"
    assert f"argument --digest: {what}, not {text!r}" in capsys.readouterr().err


def test_what_is_not_the_planned_image_is_refused(
    publish: Callable[..., int], project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The definitions have changed since, or a colleague has built another image under the name in a shared cache."""
    cache = open_cache(tmp_path / "cache")
    plan = built_image.plan(project / "definitions")
    for layer in plan.layers:
        cache.memory.keep_layer_build(plan.spec, layer.name, LayerBuild(layer.inputs, 1))
    definition = project / "definitions/upper/upper.def"
    text = definition.read_text()
    definition.write_text(text.replace("echo", "printf"))
    manifest = read_manifest(tmp_path / "cache/images/small_1.0-s.json")
    for options in ((), ("--dry-run",), ("--channel", "prod")):
        assert publish(*options) == 78
        what = (
            "image small 1.0 in the cache is not what `ctrain build` would make now (upper: definition changed (%post))"
        )
        assert what in (said := capsys.readouterr().err)
        assert said.count("\n") == 1 and "Run: ctrain build small:1.0; or pass the --build-arg of its build" in said
        assert f"or --digest {manifest.digest}\n" in said
    definition.write_text(text)
    assert publish("--build-arg", "COLOUR=blue") == 78
    said = capsys.readouterr().err
    assert "upper: argument COLOUR red -> blue" in said
    assert "Run: ctrain build small:1.0 --build-arg=COLOUR=blue" in said
    assert list(Path("store").rglob("*small*")) == []
    assert publish() == 0


def test_an_image_with_a_build_argument_is_published_with_the_same_one(
    publish: Callable[..., int], project: Path, tmp_path: Path, make_manifest: Callable[..., Manifest]
) -> None:
    cache = open_cache(tmp_path / "cache")
    plan = built_image.plan(project / "definitions", given={"COLOUR": "blue"})
    image = built_image.put(cache, plan, make_manifest)
    manifest = built_image.tested(cache, plan, read_manifest(image.with_suffix(".json")))
    manifest_writer.write(image.with_suffix(".json"), manifest)
    assert publish() == 78
    assert publish("--build-arg", "COLOUR=blue") == 0


def test_another_image_is_published_on_purpose(
    publish: Callable[..., int], project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its digest; but none that has not passed its tests."""
    definition = project / "definitions/upper/upper.def"
    definition.write_text(definition.read_text().replace("echo", "printf"))
    path = tmp_path / "cache/images/small_1.0-s.json"
    manifest = read_manifest(path)
    assert publish("--digest", manifest.digest, "--dry-run") == 0
    failed = replace(manifest, tests=(replace(manifest.tests[0], passed=False), *manifest.tests[1:]))
    manifest_writer.write(path, failed)
    assert publish("--digest", manifest.digest) == 78
    assert "image small 1.0 has not passed its tests. Run: ctrain test small:1.0" in capsys.readouterr().err
    manifest_writer.write(path, manifest)
    assert publish("--digest", manifest.digest) == 0


def test_publishing_asks_no_registry(
    publish: Callable[..., int], project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tag of a base may have moved since the build: what was tested is what goes out."""

    def asked(*_: object) -> str:
        raise AssertionError("a registry was asked")

    monkeypatch.setattr(RegistryClient, "digest", asked)
    assert publish() == 0
    (project / "definitions/base/base.def").write_text("Bootstrap: docker\nFrom: nvcr.io/far/away:{{ VERSION }}\n")
    capsys.readouterr()
    assert publish() == 78
    assert "make now (the digest of nvcr.io/far/away:1.0 is not known here yet). Run:" in capsys.readouterr().err


def test_dry_run_publishes_nothing(publish: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert publish("--dry-run") == 0
    assert capsys.readouterr().out == "would publish small 1.0\n"
    assert open_store(Path("store")).images() == ()
    publish()
    capsys.readouterr()
    assert publish("--dry-run") == 0
    assert capsys.readouterr().out == "small:1.0-s-r1 is the same image\n"


@pytest.mark.parametrize("damaged", ["image", "layer", "header"])
def test_what_is_damaged_in_the_cache_is_removed_so_that_a_build_makes_it_again(
    publish: Callable[..., int], project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: str
) -> None:
    """`publish` said that it should be built again, `build` that it was up to date."""
    cache = open_cache(tmp_path / "cache")
    plan = built_image.plan(project / "definitions")
    image = cache.image(plan.spec)
    whole = image.read_bytes()
    cache.layers.path(plan.layers[0].key, True).write_bytes(sif(data=b"base"))
    image.write_bytes(whole[:8] if damaged == "header" else whole.replace(b"upper", b"UPPER"))
    if damaged == "layer":
        cache.layers.path(plan.layers[1].key, False).write_bytes(b"UPPER")
    stage = Stage.CORRUPT if damaged == "header" else Stage.TESTED  # a build reads no images
    assert CachedImage(cache, plan.spec).state(plan).stage is stage
    assert publish("--channel", "prod") == 69
    said = capsys.readouterr().err
    layer = ", layer upper" * (damaged == "layer")
    assert f"; removed from the cache: the image{layer}. Run: ctrain build small:1.0\n" in said
    assert said.startswith(f"ctrain: {image} ") and said.count("\n") == 1
    assert CachedImage(cache, plan.spec).state(plan).stage is Stage.PLANNED
    assert [cache.layers.has(layer.key, layer.definition.is_base) for layer in plan.layers] == [
        True,
        damaged != "layer",
    ]
    assert list(Path("store").rglob("*small*")) == []


def test_an_image_without_tests_is_refused_with_what_it_lacks(
    publish: Callable[..., int],
    project: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make_manifest: Callable[..., Manifest],
) -> None:
    """`publish` said that `ctrain test` should test it, which had nothing to run."""
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text().replace("[base, upper]", "[base]"))
    cache, plan = open_cache(tmp_path / "cache"), built_image.plan(project / "definitions")
    image = built_image.put(cache, plan, make_manifest)
    assert built_image.tested(cache, plan, read_manifest(image.with_suffix(".json"))).tests == ()
    assert publish() == 78
    base = project / "definitions/base/base.def"
    told = f"image small 1.0 has no tests, which publishing needs. Add a %test to a definition, as in {base}\n"
    assert capsys.readouterr().err == f"ctrain: {told}"


def test_an_empty_channel_is_refused(publish: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert publish("--channel", "") == 64
    assert "'' is not a channel name" in capsys.readouterr().err
    assert open_store(Path("store")).images() == ()


def test_a_file_is_no_store(publish: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert publish("--store", "file") == 76
    assert capsys.readouterr().err == "ctrain: file is a file, not the directory of a store. Pass --store DIR\n"


def test_the_manifest_tells_whether_it_may_be_passed_on(publish: Callable[..., int], project: Path) -> None:
    """By images.yaml as it is at that time: the image is the same, and is not built again."""
    images = project / "definitions/images.yaml"
    text = images.read_text()
    images.write_text(f"{text}    redistribute: no\n")
    assert publish() == 0
    (image,) = open_store(Path("store")).images()
    assert image.manifest.labels["org.ctrain.redistribute"] == "no"
    images.write_text(text)
    assert publish() == 0
    (same,) = open_store(Path("store")).images()
    assert same == image, "what is published stays as it is"
