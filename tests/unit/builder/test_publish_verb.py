from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_builder import manifest_writer
from ctrain_builder.cache_root import open_cache
from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store.init import init_store
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.digest import file_digest
from ctrain_runtime.manifest import Manifest, read_manifest
from ctrain_runtime.store import open_store
from samples import built_image


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


def test_dry_run_publishes_nothing(publish: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert publish("--dry-run") == 0
    assert capsys.readouterr().out == "would publish small 1.0\n"
    assert open_store(Path("store")).images() == ()
    publish()
    capsys.readouterr()
    assert publish("--dry-run") == 0
    assert capsys.readouterr().out == "small:1.0-s-r1 is the same image\n"


def test_an_empty_channel_is_refused(publish: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert publish("--channel", "") == 64
    assert "'' is not a channel name" in capsys.readouterr().err
    assert open_store(Path("store")).images() == ()


def test_a_file_is_no_store(publish: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert publish("--store", "file") == 76
    assert capsys.readouterr().err == "ctrain: file is a file, not the directory of a store. Pass --store DIR\n"
