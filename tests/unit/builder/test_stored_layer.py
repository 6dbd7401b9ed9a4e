from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.registry import stored_layer
from ctrain_builder.registry.stored_layer import StoredLayer, Unusable

A, B = f"sha256:{'a1' * 32}", f"sha256:{'b2' * 32}"
WHERE, KEY = "oras://r.example.org/layers", "0f" * 32
UPPER = StoredLayer(KEY, "horovod", "amd64", B, LayerContent(A, 5, "2026-11-24T01:02:03Z", WHERE))


def read(data: Any, key: str = KEY, arch: str = "amd64") -> StoredLayer:
    return stored_layer.read(data, WHERE, key, arch)


def artifact(layer: StoredLayer = UPPER) -> dict[str, Any]:
    made = stored_layer.artifact(layer, {"digest": B, "size": 2}, "0.1.0")
    found = json.loads(json.dumps(made))
    assert isinstance(found, dict)
    return found


def test_what_is_written_is_read() -> None:
    assert read(artifact()) == UPPER
    base = StoredLayer(KEY, "base", "amd64", "", LayerContent(A, 5, "2026-11-24T01:02:03Z", WHERE))
    assert read(artifact(base)) == base
    assert artifact()["annotations"]["org.ctrain.layer.ctrain"] == "0.1.0"


@pytest.mark.parametrize(("key", "arch"), [("1f" * 32, "amd64"), (KEY, "arm64")])
def test_another_key_or_architecture_is_not_taken(key: str, arch: str) -> None:
    with pytest.raises(Unusable, match=f"^{WHERE}:{key[:12]} cannot be used: it is of another key or architecture"):
        read(artifact(), key, arch)


def change(*path: Any) -> Callable[[Any], None]:
    """Put the last of `path` where the others lead."""

    def apply(data: Any) -> None:
        *way, last, value = path
        for step in way:
            data = data[step]
        data[last] = value

    return apply


@pytest.mark.parametrize(
    "spoil",
    [
        change("config", None),
        change("config", "mediaType", "application/vnd.oci.image.config.v1+json"),
        change("layers", []),
        change("layers", 0, "mediaType", "application/vnd.sylabs.sif.layer.v1.sif"),
        change("layers", 0, "digest", "sha256:../../etc/passwd"),
        change("layers", 0, "digest", 7),
        change("layers", 0, "size", "5"),
        change("layers", 0, "size", True),
        change("layers", 0, "size", 0),
        change("layers", 0, 5),
        change("annotations", None),
        change("annotations", "org.opencontainers.image.created", "yesterday"),
        change("annotations", "org.opencontainers.image.created", 5),
        change("annotations", "org.ctrain.layer.parent", "B"),
        change("annotations", "org.ctrain.layer.parent", None),
        change("annotations", "org.ctrain.layer.key", None),
    ],
)
def test_garbage_is_named(spoil: Callable[[Any], None]) -> None:
    data = copy.deepcopy(artifact())
    spoil(data)
    with pytest.raises(Unusable, match=f"^{WHERE}:{KEY[:12]} cannot be used: "):
        read(data)
