"""Layers in registries: looks them up by their keys, downloads and uploads them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Optional

from ctrain_builder.files.digests import ReadAt
from ctrain_builder.registry import artifacts, stored_layer
from ctrain_builder.registry.stored_layer import StoredLayer, Unusable
from ctrain_runtime.base.version import ctrain_version
from ctrain_runtime.errors import ConfigError, ImageUnusable, UsageError
from ctrain_runtime.registry.client import PULL, PUSH, Reference, RegistryClient, parse

SCHEME = "oras://"
_CHUNK = 1 << 20  # bytes
UPLOADED, EXISTS, NEWER_EXISTS = "uploaded", "exists", "newer exists"  # how an upload ends


def check(origin: str) -> None:
    """Raise UsageError unless `origin` names a repository: oras://HOST[:PORT]/PATH, without a tag."""
    where = origin[len(SCHEME) :]
    with contextlib.suppress(ConfigError):
        if origin.startswith(SCHEME) and parse(f"{where}:x").name == where:
            return
    raise UsageError(f"{origin!r} is not a repository of a registry", f"Write it as {SCHEME}HOST[:PORT]/PATH")


def find(client: RegistryClient, origin: str, key: str, arch: str, actions: str = PULL) -> Optional[StoredLayer]:
    """The layer with this key in a repository; None if there is none. Raises RegistryError."""
    answer = client.find(_reference(origin, key), actions)
    return stored_layer.read(answer[1], origin, key, arch) if answer else None


def download(client: RegistryClient, layer: StoredLayer, target: Path, done: Callable[[int], None]) -> None:
    """Write a layer's partition to a new file; `done` is told the bytes that have come.

    Raises RegistryError; Unusable for a content with another digest. Then the file is of no use.
    """
    source = artifacts.Download(client, _reference(layer.content.origin, layer.key), layer.content.digest)
    sha, at = hashlib.sha256(), 0
    with target.open("wb") as file:
        while at < layer.content.size:
            part = source.read(min(_CHUNK, layer.content.size - at), at)
            sha.update(part)
            file.write(part)
            at += len(part)
            done(at)
    if f"sha256:{sha.hexdigest()}" != layer.content.digest:
        what = f"digest mismatch: {layer.content.origin}:{layer.key[:12]} is not what its manifest records"
        raise Unusable(what, "Report it to the registry's administrators")


def upload(client: RegistryClient, layer: StoredLayer, read: ReadAt, done: Callable[[int], None]) -> str:
    """Bring a layer, whose partition `read` gives, to its repository, unless it or a newer one of its key is there.

    Raises RegistryError; ImageUnusable if the partition is not the one that is described.
    """
    ref = _reference(layer.content.origin, layer.key)
    with contextlib.suppress(Unusable):
        present = find(
            client, layer.content.origin, layer.key, layer.arch, PUSH
        )  # of a new repository, readers know nothing
        if present and (present.content.digest, present.parent) == (layer.content.digest, layer.parent):
            return EXISTS
        if present and present.content.built > layer.content.built:
            return NEWER_EXISTS
    sent = artifacts.put_blob(client, ref, layer.content.digest, layer.content.size, read, done)
    if sent != layer.content.digest:
        what = f"layer {layer.definition} in the cache is damaged: it has the digest {sent}, not {layer.content.digest}"
        raise ImageUnusable(what, f"Build it again: --rebuild={layer.definition}")
    config = artifacts.put_small(client, ref, b"{}")
    artifacts.put_manifest(client, ref, stored_layer.artifact(layer, config, ctrain_version()))
    return UPLOADED


def _reference(origin: str, key: str) -> Reference:
    return parse(f"{origin[len(SCHEME) :]}:{key}")
