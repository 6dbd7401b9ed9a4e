"""A layer as an artifact of a registry: its tag is the layer's key, its only blob the layer's partition, a squashfs.

So the digest by which a registry knows the blob is the one that manifests of images have. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctrain_builder.files.layer_content import LayerContent
from ctrain_runtime.errors import RegistryError

_CONFIG = "application/vnd.ctrain.layer.v1+json"  # of nothing: by this type registries tell what an artifact is
_BLOB = "application/vnd.ctrain.layer.v1.squashfs"
_TITLE, _CREATED = "org.opencontainers.image.title", "org.opencontainers.image.created"
_OWN = "org.ctrain.layer."
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Unusable(RegistryError):
    """What a tag points to is not the layer that it is called after."""


@dataclass(frozen=True)
class StoredLayer:
    """A layer in a repository, its content's `origin` (oras://HOST/PATH). `parent` is the digest of the partition that
    it was built on ("" for a base)."""

    key: str
    definition: str
    arch: str
    parent: str
    content: LayerContent


def artifact(layer: StoredLayer, config: Mapping[str, Any], maker: str) -> dict[str, Any]:
    """Its manifest in the registry. `config` names the blob of an empty object, `maker` is the version of ctrain."""
    facts = {"key": layer.key, "arch": layer.arch, "parent": layer.parent, "ctrain": maker}
    blob = {"mediaType": _BLOB, "digest": layer.content.digest, "size": layer.content.size}
    return {
        "config": {"mediaType": _CONFIG, **config},
        "layers": [{**blob, "annotations": {_TITLE: f"{layer.definition}.sqsh"}}],
        "annotations": {
            _TITLE: layer.definition,
            _CREATED: layer.content.built,
            **{f"{_OWN}{name}": value for name, value in facts.items()},
        },
    }


def read(data: Mapping[str, Any], origin: str, key: str, arch: str) -> StoredLayer:
    """The layer of such a manifest. Raises Unusable unless it is the one with this key, for this architecture."""
    config, blobs, notes = data.get("config"), data.get("layers"), data.get("annotations")
    blob = blobs[0] if isinstance(blobs, list) and len(blobs) == 1 and isinstance(blobs[0], dict) else {}
    if not isinstance(config, dict) or not isinstance(notes, dict):
        raise _unusable(origin, key, "it is not a layer of ctrain")
    if (config.get("mediaType"), blob.get("mediaType")) != (_CONFIG, _BLOB):
        raise _unusable(origin, key, "it is not a layer of ctrain")
    names = (_TITLE, _CREATED, f"{_OWN}parent")
    definition, built, parent = (str(notes.get(name, "?")) for name in names)
    digest, size = blob.get("digest"), blob.get("size")
    if (notes.get(f"{_OWN}key"), notes.get(f"{_OWN}arch")) != (key, arch):
        raise _unusable(origin, key, "it is of another key or architecture")
    if not isinstance(digest, str) or type(size) is not int or size < 1 or not _DIGEST.fullmatch(digest):
        raise _unusable(origin, key, "its manifest is damaged")
    if not _TIME.fullmatch(built) or (parent and not _DIGEST.fullmatch(parent)):
        raise _unusable(origin, key, "its manifest is damaged")
    return StoredLayer(key, definition, arch, parent, LayerContent(digest, size, built, origin))


def _unusable(origin: str, key: str, why: str) -> Unusable:
    return Unusable(f"{origin}:{key[:12]} cannot be used: {why}", "Remove the tag there")
