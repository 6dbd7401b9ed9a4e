from __future__ import annotations

import platform
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.errors import ConfigError, RegistryError, UsageError
from ctrain_runtime.images import remote
from ctrain_runtime.images.image import OCI_ARCH
from ctrain_runtime.images.pull import ResolvedReference
from ctrain_runtime.registry.client import Reference, RegistryClient
from ctrain_runtime.registry.http_client import Unreachable
from samples import library
from samples.library import Library
from samples.registry import Answer

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
    assert remote.resolve(reference) == ResolvedReference(DIGEST, entry, f"{pulled}@{DIGEST}")


def test_the_file_of_oras_is_known_before_it_is_pulled(layers: list[Any]) -> None:
    expected = ResolvedReference(FILE, f"{FILE.replace(':', '-')}.sif", "oras://r.example/x:1")
    assert remote.resolve("oras://r.example/x:1") == expected
    layers[:] = [{"mediaType": "application/json", "digest": DIGEST}, SIF]
    assert remote.resolve("oras://r.example/x:1") == expected
    for wrong in ([], ["text"], [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": FILE}]):
        layers[:] = wrong
        with pytest.raises(RegistryError, match=r"is not a SIF file\. For an image of layers: docker://r.example/x:1$"):
            remote.resolve("oras://r.example/x:1")


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match="is not a reference to an image of a registry"):
        remote.resolve("docker://r.example/Team/UPPER")
    with pytest.raises(UsageError, match="invalid image reference"):
        remote.resolve("shub://x")


@pytest.mark.parametrize("digest", ["", "sha512:aa", f"{FILE}0", "/../../home/x"])
def test_a_file_without_a_digest_is_none(layers: list[Any], digest: str) -> None:
    """The digest becomes the name of a file in the cache."""
    layers[:] = [{**SIF, "digest": digest}]
    with pytest.raises(RegistryError, match=r"^oras://r.example/x:1 is announced without its SHA-256\. Report it to"):
        remote.resolve("oras://r.example/x:1")


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Library]:
    image = tmp_path / "image"
    image.write_bytes(b"an image")
    with library.serve() as running:
        running.images = {"team/nets/small:1": image, "team/nets/small:latest": image}
        running.arch = OCI_ARCH.get(platform.machine(), platform.machine())
        yield running


def test_a_library_tells_the_digest_of_its_file(books: Library) -> None:
    digest = f"sha256:{sha256(b'an image').hexdigest()}"
    for name in ("team/nets/small:1", "team/nets/small"):
        reference = books.reference(name)
        assert remote.resolve(reference) == ResolvedReference(digest, f"{digest.replace(':', '-')}.sif", reference)
    assert books.downloads() == 0


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        *((status, b"{}", "has no public image team/nets/small:1 for .*--image ./FILE$") for status in (401, 403, 404)),
        (200, b'{"data": {"hash": "sif.5574b72c-7705-49cc-874e-424fc3b78116"}}', "is announced without its SHA-256"),
        (200, b'{"data": []}', "is announced without its SHA-256"),
        (400, b'{"error": {"code": 400, "message": "Bad Request"}}', "is announced without its SHA-256"),
        (200, b"<html>", "did not return a registry response"),
    ],
)
def test_a_library_that_tells_no_digest(books: Library, status: int, body: bytes, reason: str) -> None:
    books.front.stand = lambda _: Answer(status, {}, body)
    with pytest.raises(RegistryError, match=reason) as caught:
        remote.resolve(books.reference("team/nets/small:1"))
    assert not isinstance(caught.value, Unreachable)


def test_a_library_of_another_architecture_and_none(books: Library) -> None:
    books.arch = "sparc64"
    with pytest.raises(RegistryError, match="has no public image team/nets/small:latest for "):
        remote.resolve(books.reference("team/nets/small"))
    books.front.stand = lambda _: Answer(503, {}, b"")
    with pytest.raises(Unreachable, match="answers 503"):
        remote.resolve(books.reference("team/nets/small:1"))
