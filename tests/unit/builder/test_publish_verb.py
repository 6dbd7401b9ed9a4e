from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_builder import manifest_writer
from ctrain_builder.cache_root import open_cache
from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store.init import init_store
from ctrain_runtime.cli.main import main
from ctrain_runtime.manifest import Manifest
from ctrain_runtime.store import open_store


@pytest.fixture
def publish(project: Path, tmp_path: Path, make_manifest: Callable[..., Manifest]) -> Callable[..., int]:
    """publish(OPTIONS) of an image that is in the cache, to the store `store`."""
    cache = open_cache(tmp_path / "cache")
    image = cache.root / "images" / "small_1.0-s.sif"
    image.write_bytes(b"image")
    manifest = make_manifest(f"sha256:{hashlib.sha256(b'image').hexdigest()}")
    manifest_writer.write(image.with_suffix(".json"), replace(manifest, size=5))
    init_store(tmp_path / "store")
    places = ["--definitions", str(project / "definitions"), "--cache", str(cache.root), "--store", "store"]
    return lambda *options: main(BUILD_VERBS, ["publish", "small", *places, *options])


def test_an_image_is_published_under_a_channel(publish: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert publish("--channel", "dev") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "channel dev of small is now 1.0-s-r1"


def test_only_the_image_that_was_approved(publish: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert publish("--digest", "sha256:0") == 64
    assert "small 1.0 in the cache has the digest sha256:6105d6cc" in capsys.readouterr().err
    assert open_store(Path("store")).images() == ()
    assert publish("--digest", f"sha256:{hashlib.sha256(b'image').hexdigest()}") == 0
    assert [image.manifest.release for image in open_store(Path("store")).images()] == [1]


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
