"""A small project with two images' worth of definitions, and manifests, for the builder's tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime.cli.main import main
from ctrain_runtime.store.manifest import Layer, Manifest, TestResult
from samples.shop import Shop

BASE = """\
Bootstrap: debootstrap
OSVersion: bookworm
MirrorURL: {{ MIRROR }}

%arguments
    VERSION=1.0

%post
    echo {{ VERSION }}
"""
UPPER = """\
Bootstrap: localimage
From: {{ PARENT }}

%arguments
    COLOUR=red

%files
    examples/x /opt/x

%post
    echo {{ COLOUR }}

%test
    true
"""
IMAGES = """\
images:
  small:
    chain: [base, upper]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
"""
MORE = """
    tags: {"1.0": {}, "0.9": {arguments: {COLOUR: blue}}}
  other:
    chain: [far, upper]
    stack: s
    tag: "7"
    tag_argument: TAG
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder: definitions/ and examples/ side by side."""
    root = tmp_path / "project"
    for path, text in {
        "definitions/images.yaml": IMAGES,
        "definitions/base/base.def": BASE,
        "definitions/upper/upper.def": UPPER,
        "examples/x/train.py": "print(1)\n",
        "examples/x/sub/data.txt": "data\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture
def ctrain(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """ctrain(verb, ...) in the project, with an engine that does nothing."""
    engine = tmp_path / "bin/apptainer"
    engine.parent.mkdir()
    engine.write_text('#!/bin/sh\n[ "$1" = --version ] && echo apptainer version 1.4.5\n')
    engine.chmod(0o755)
    packer = engine.with_name("mksquashfs")
    packer.write_text("#!/bin/sh\n")
    packer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
    places = ["--definitions", str(project / "definitions"), "--cache", str(tmp_path / "cache")]
    return lambda verb, *args: main(BUILD_VERBS, [verb, *places, *args])


@pytest.fixture
def matrix(project: Path) -> Path:
    """Three images: small at two tags, and one whose base comes from a registry."""
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text().rstrip() + MORE)
    (project / "definitions/far").mkdir()
    (project / "definitions/far/far.def").write_text("Bootstrap: docker\nFrom: nvcr.io/far/away:{{ TAG }}\n")
    return project


@pytest.fixture
def make_manifest() -> Callable[..., Manifest]:
    """make_manifest(digest): the manifest of an image that passed its tests."""

    def make(
        digest: str = "sha256:0",
        *,
        passed: bool = True,
        tag: str = "1.0",
        layers: Sequence[tuple[str, str]] = (("base", "k0"), ("upper", "k1")),
    ) -> Manifest:
        return Manifest(
            name="small",
            tag=tag,
            stack="s",
            digest=digest,
            size=5,
            arch="amd64",
            built="2026-11-21T04:12:13Z",
            layers=tuple(Layer(definition, key, 1) for definition, key in layers),
            software={"torch": "2.13.0", "python": "3.11.2"},
            tests=(TestResult("imports", passed, "1.2"),),
            tools={"apptainer": "1.4.5"},
        )

    return make


@pytest.fixture
def shop(tmp_path: Path, make_manifest: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]) -> Shop:
    """Three versions; prod was the first and is the second, dev is the third."""
    shop = Shop(tmp_path, make_manifest, capsys)
    shop.publish("one", "prod")
    shop.publish("two", "prod")
    shop.publish("three", "dev")
    return shop


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache(tmp_path / "cache")


@pytest.fixture
def layers(cache: Cache) -> list[Path]:
    """Three layers of 10 bytes, the one used longest ago first."""
    paths = [cache.layers.path(name, is_base=False) for name in "abc"]
    for number, path in enumerate(paths):
        path.write_bytes(bytes(10))
        os.utime(path, (number, number))
    return paths
