from __future__ import annotations

import platform
from typing import Any

import pytest

from ctrain_runtime import remote
from ctrain_runtime.errors import ConfigError, RegistryError, UsageError
from ctrain_runtime.pull import Meaning
from ctrain_runtime.registry.client import Reference, RegistryClient
from ctrain_runtime.registry.http_client import Unreachable

DIGEST, FILE = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
SIF = {"mediaType": "application/vnd.sylabs.sif.layer.v1.sif", "digest": FILE}  # as `apptainer push` 1.4.5 writes it


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The layers of every manifest."""
    layers: list[Any] = [SIF]

    def manifest(_self: RegistryClient, _ref: Reference) -> tuple[str, dict[str, Any]]:
        return DIGEST, {"layers": layers}

    monkeypatch.setattr(RegistryClient, "manifest", manifest)
    return layers


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize(
    ("reference", "pulled"),
    [
        ("docker://debian:12", "docker://docker.io/library/debian"),
        ("docker://r.example:5000/team/train", "docker://r.example:5000/team/train"),
        (f"docker://r.example/x:1@{DIGEST}", "docker://r.example/x"),  # which engines do not take with both
    ],
)
def test_an_image_of_docker_is_pulled_by_its_digest(reference: str, pulled: str) -> None:
    entry = f"oci-{DIGEST.replace(':', '-')}-{platform.machine()}.sif"
    assert remote.resolve(reference) == Meaning(DIGEST, entry, f"{pulled}@{DIGEST}")


def test_the_file_of_oras_is_known_before_it_is_pulled(layers: list[Any]) -> None:
    expected = Meaning(FILE, f"{FILE.replace(':', '-')}.sif", "oras://r.example/x:1")
    assert remote.resolve("oras://r.example/x:1") == expected
    layers[:] = [{"mediaType": "application/json", "digest": DIGEST}, SIF]
    assert remote.resolve("oras://r.example/x:1") == expected
    for wrong in ([], ["text"], [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": FILE}]):
        layers[:] = wrong
        with pytest.raises(RegistryError, match=r"is not a SIF file\. For an image of layers: docker://r.example/x:1$"):
            remote.resolve("oras://r.example/x:1")


def test_what_cannot_be_asked() -> None:
    with pytest.raises(Unreachable, match="cannot ask a library"):
        remote.resolve("library://team/train:1")
    with pytest.raises(ConfigError, match="is not a reference to an image of a registry"):
        remote.resolve("docker://r.example/Team/UPPER")
    with pytest.raises(UsageError, match="invalid image reference"):
        remote.resolve("shub://x")
