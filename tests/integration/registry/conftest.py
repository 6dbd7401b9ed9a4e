"""A real registry on loopback, and a front that lets it misbehave."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime.registry.client import RegistryClient
from samples import registry as samples
from samples.registry import NAME, TAGS, Front, front, oci_layout, serve


@pytest.fixture(scope="package")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    oci_layout(folder / "one", env=["CUDA_VERSION=12.6.3.004"], labels={"com.nvidia.pytorch.version": "2.6.0a0"})
    oci_layout(folder / "two", {"etc/hello": b"other\n"})
    oci_layout(folder / "index", arches=["amd64", "arm64"])
    return folder


@pytest.fixture(scope="package")
def real(tmp_path_factory: pytest.TempPathFactory, layouts: Path) -> Iterator[samples.Registry]:
    """A registry that everybody may read, with images."""
    if not (shutil.which("docker-registry") and shutil.which("skopeo")):
        if os.environ.get("CI"):
            pytest.fail("CI must have docker-registry and skopeo: see tests/cluster/install")
        pytest.skip("no docker-registry or skopeo here: tests/cluster/install brings them")
    with serve(tmp_path_factory.mktemp("registry")) as registry:
        for tag in TAGS:
            registry.push(layouts / "one", f"{NAME}:{tag}")
        registry.push(layouts / "index", "multi:1")
        yield registry


@pytest.fixture
def before(real: samples.Registry) -> Iterator[Front]:
    """A front before that registry."""
    with front(real) as made:
        yield made


@pytest.fixture
def waits() -> list[float]:
    """The seconds that `client` has waited, or would have."""
    return []


@pytest.fixture
def client(waits: list[float]) -> RegistryClient:
    """A client without any login, that does not really wait."""
    return RegistryClient({}, timeout=20, pause=waits.append)
