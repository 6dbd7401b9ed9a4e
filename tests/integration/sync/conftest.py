"""A store with two versions, a real registry on loopback, and a front that lets it misbehave."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.registry import artifacts
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_runtime.cli.main import main
from ctrain_runtime.store.store import Store, open_store
from samples import registry as samples
from samples.registry import Front, front, serve
from samples.stores import Image, Images
from samples.syncing import CHUNK, Sync, place


@pytest.fixture(scope="package")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return Images(tmp_path_factory.mktemp("images"), 8_000_000)


@pytest.fixture(scope="package")
def pair(images: Images) -> list[Image]:
    return [images.new(), images.new()]


@pytest.fixture
def store(tmp_path: Path, pair: list[Image]) -> Store:
    """Two versions; prod is the first, dev the second."""
    init_store(tmp_path / "store")
    for image, channel in zip(pair, ("prod", "dev")):
        publish(image.path, image.manifest, tmp_path / "store", channel)
    return open_store(tmp_path / "store")


@pytest.fixture
def real(tmp_path: Path) -> Iterator[samples.Registry]:
    if not shutil.which("docker-registry"):
        if os.environ.get("CI"):
            pytest.fail("CI must have docker-registry: see tests/cluster/install")
        pytest.skip("no docker-registry here: tests/cluster/install brings it")
    with serve(tmp_path / "registry") as registry:
        yield registry


@pytest.fixture
def before(real: samples.Registry) -> Iterator[Front]:
    """A front before that registry. Like most proxies, it passes on only what has come whole."""
    with front(real) as made:
        yield made


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "_CHUNK", CHUNK)
    monkeypatch.setattr(artifacts, "_WAITS", (0.01, 0.01))
    monkeypatch.setenv("CTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))  # no logins but those of a test
    init_store(tmp_path / "other")


@pytest.fixture
def sync(capsys: pytest.CaptureFixture[str]) -> Sync:
    def run(*argv: object, code: int = 0) -> str:
        """What `ctrain store sync ARGV` prints; in case of an error, that."""
        ended = main(BUILD_VERBS, ["store", "sync", *map(str, argv)])
        said = capsys.readouterr()
        assert ended == code, said
        return said.err if code else said.out

    return run


@pytest.fixture
def pushed(store: Store, before: Front, sync: Sync) -> Store:
    sync(store.root, place(before), "--channels")
    before.requests.clear()
    return store
