"""User layers without an engine: a few bytes in place of the squashfs, and a description."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ctrain_runtime.images import user_layer
from ctrain_runtime.images.user_layer import Description, Parent, UserLayer
from ctrain_runtime.store.manifest import Manifest
from samples.plans import a_manifest


def a_description(manifest: Manifest, packages: Mapping[str, str], key: str = "a" * 64) -> Description:
    """The description of a layer on the image of `manifest`."""
    parent = Parent(manifest.name, manifest.version, manifest.digest)
    return Description(key, parent, "requirements.txt", "sha256:5e", "2026-11-20T01:02:03Z", dict(packages))


def a_layer(path: str = "/home/kim/my.sqsh", key: str = "a" * 64, **packages: str) -> UserLayer:
    """A layer on samples.plans.an_image(); `packages` as in einops="0.8.2"."""
    return UserLayer(Path(path), "sha256:1a7e", a_description(a_manifest(), packages, key))


def write_layer(path: Path, manifest: Manifest, **packages: str) -> Path:
    path.write_bytes(b"hsqs and what it holds")
    user_layer.seal(path, a_description(manifest, packages))
    return path
