from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.registry import layers
from ctrain_builder.registry.stored_layer import StoredLayer, Unusable
from ctrain_runtime.errors import ImageUnusable, RegistryError, UsageError
from ctrain_runtime.registry.client import RegistryClient, digest_of
from ctrain_runtime.registry.http_client import Unreachable
from samples.registry import Answer, Front, Request, front
from samples.shelf import Shelf

CONTENT = b"hsqs" + bytes(range(256)) * 12_000  # several parts
KEY = "0f" * 32
TIME = "2026-11-24T01:02:03Z"


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def registry(shelf: Shelf) -> Iterator[Front]:
    with front() as made:
        made.stand = shelf
        yield made


@pytest.fixture
def layer(registry: Front) -> StoredLayer:
    where = f"oras://{registry.host}/layers"
    return StoredLayer(
        KEY, "horovod", "amd64", digest_of(b"below"), LayerContent(digest_of(CONTENT), len(CONTENT), TIME, where)
    )


def client() -> RegistryClient:
    return RegistryClient({}, timeout=5, pause=lambda _: None)


def changed(layer: StoredLayer, **facts: Any) -> StoredLayer:
    return dataclasses.replace(layer, content=dataclasses.replace(layer.content, **facts))


def upload(layer: StoredLayer, content: bytes = CONTENT) -> str:
    return layers.upload(client(), layer, lambda size, at: content[at : at + size], lambda _: None)


def find(layer: StoredLayer, key: str = KEY) -> object:
    return layers.find(client(), layer.content.origin, key, "amd64")


def test_a_layer_comes_back_as_it_was(layer: StoredLayer, tmp_path: Path) -> None:
    assert find(layer) is None
    assert upload(layer) == layers.UPLOADED
    assert find(layer) == layer
    assert find(layer, "1f" * 32) is None
    told: list[int] = []
    layers.download(client(), layer, tmp_path / "layer", told.append)
    assert (tmp_path / "layer").read_bytes() == CONTENT
    assert told == sorted(told) and told[-1] == len(CONTENT)


def test_no_list_of_tags_is_asked_for_to_learn_that_a_layer_is_missing(registry: Front, layer: StoredLayer) -> None:
    assert find(layer) is None
    assert [request.path for request in registry.requests] == [f"/v2/layers/manifests/{KEY}"]


def test_the_same_layer_is_uploaded_once(registry: Front, layer: StoredLayer) -> None:
    upload(layer)
    registry.requests.clear()
    assert upload(changed(layer, built="2026-11-25T00:00:00Z")) == layers.EXISTS
    assert [request.method for request in registry.requests] == ["GET"]


def test_a_newer_layer_stays_and_an_older_one_is_replaced(layer: StoredLayer) -> None:
    """As of two jobs that have built one key at once."""
    upload(layer)
    other = changed(layer, digest=digest_of(b"hsqs other"), size=10)
    assert upload(changed(other, built="2026-11-24T01:02:02Z"), b"hsqs other") == layers.NEWER_EXISTS
    assert find(layer) == layer
    newer = changed(other, built="2026-11-24T01:02:04Z")
    assert upload(newer, b"hsqs other") == layers.UPLOADED
    assert find(layer) == newer


def test_the_same_bytes_on_another_layer_are_another_layer(layer: StoredLayer) -> None:
    """Who has the layer below of today would not take them."""
    upload(layer)
    moved = dataclasses.replace(changed(layer, built="2026-11-25T00:00:00Z"), parent=digest_of(b"another"))
    assert upload(moved) == layers.UPLOADED
    assert find(layer) == moved


def test_garbage_under_a_key_is_replaced(shelf: Shelf, layer: StoredLayer) -> None:
    shelf.manifests[KEY] = b'{"config": {}}'
    with pytest.raises(Unusable):
        find(layer)
    assert upload(layer) == layers.UPLOADED
    assert find(layer) == layer


def test_a_damaged_layer_does_not_get_a_tag(shelf: Shelf, layer: StoredLayer) -> None:
    with pytest.raises(ImageUnusable, match=r"^layer horovod in the cache is damaged: .* Build it again: "):
        upload(layer, CONTENT[:-1] + b"x")
    assert not shelf.manifests


@pytest.mark.parametrize("body", [CONTENT[:-1] + b"x", b"<html>login</html>" + CONTENT, CONTENT[:100] + CONTENT])
def test_another_content_than_recorded_is_refused(
    shelf: Shelf, layer: StoredLayer, tmp_path: Path, body: bytes
) -> None:
    upload(layer)
    shelf.blobs[layer.content.digest] = body
    with pytest.raises(Unusable, match=rf"^digest mismatch: {layer.content.origin}:{KEY[:12]} is not what"):
        layers.download(client(), layer, tmp_path / "layer", lambda _: None)
    assert (tmp_path / "layer").stat().st_size <= layer.content.size, "no more is written than was announced"


def test_a_layer_that_ends_too_early(shelf: Shelf, layer: StoredLayer, tmp_path: Path) -> None:
    upload(layer)
    shelf.blobs[layer.content.digest] = CONTENT[:2_000_000]
    with pytest.raises(Unreachable, match=r" sends less of .* than it should, after 2\.0 MB"):
        layers.download(client(), layer, tmp_path / "layer", lambda _: None)


def test_a_cut_connection_goes_on_where_it_was(
    registry: Front, shelf: Shelf, layer: StoredLayer, tmp_path: Path
) -> None:
    upload(layer)
    cut: list[Request] = []

    def stand(request: Request) -> Optional[Answer]:
        answer = shelf(request)
        if answer and "/blobs/" in request.path and request.method == "GET" and len(cut) < 2:
            cut.append(request)
            answer.cut = True
        return answer

    registry.stand = stand
    layers.download(client(), layer, tmp_path / "layer", lambda _: None)
    assert (tmp_path / "layer").read_bytes() == CONTENT
    assert len(cut) == 2


@pytest.mark.parametrize(
    ("status", "why"), [(401, "denies read access"), (403, "denies read access"), (418, "answers")]
)
def test_a_refusal_is_no_missing_layer(registry: Front, layer: StoredLayer, status: int, why: str) -> None:
    registry.stand = lambda _: Answer(status, {}, b"{}")
    with pytest.raises(RegistryError, match=f"^{registry.host} {why}"):
        find(layer)


R = "oras://r.example.org"


@pytest.mark.parametrize(
    "text",
    [
        *("", "oras://", R, "r.example.org/layers", "docker://r.example.org/layers", "oras://layers", f"x{R}/layers"),
        *(f"{R}/layers:tag", f"{R}/layers/", f"{R}/Layers", "./x", f"{R}/layers@{digest_of(b'')}"),
    ],
)
def test_what_names_no_repository_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a repository of a registry. Write it as oras://HOST\[:PORT\]/PATH"):
        layers.check(text)


@pytest.mark.parametrize(
    "text", ["oras://127.0.0.1:5000/lab/layers", "oras://r.example.org/layers", "oras://localhost:5/a"]
)
def test_what_names_a_repository(text: str) -> None:
    layers.check(text)
