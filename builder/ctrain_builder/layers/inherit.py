"""Layers that were not built here, but come as file systems: those of a parent image, and of a registry."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ctrain_builder.files.digests import Region
from ctrain_builder.layers import metadata, pack, sif_file
from ctrain_builder.layers.container import Container, LowerLayers
from ctrain_builder.layers.layer import copy_metadata
from ctrain_runtime.base.digest import read_chunks
from ctrain_runtime.errors import BuildError, ImageUnusable


def copy(container: Container, name: str, source: Region, log: Path, *, arch: str, is_base: bool) -> Path:
    """Copy a file system of a parent image. Returns a new SIF for the lowest, else the squashfs file, in the work
    directory. Raises BuildError, ImageUnusable."""
    packed = pack.packed(container)
    _extract(name, source, packed)
    return as_base(container, packed, log, arch) if is_base else packed


def as_base(container: Container, packed: Path, log: Path, arch: str) -> Path:
    """The new SIF of a file system, which is used up. Raises BuildError."""
    files = {"Singularity": "", **copy_metadata(container, LowerLayers(packed), log)}
    return sif_file.new(container, packed, arch, files, {}, log)


def require_key(container: Container, packed: Path, below: Sequence[Path], key: str, log: Path) -> None:
    """Raise BuildError unless a file system is an upper layer with this key on the layers `below`."""
    layers = LowerLayers(below[0], (*below[1:], packed))
    if copy_metadata(container, layers, log).get(metadata.MARKER, "").strip() != key:
        raise BuildError(f"{packed.name} is not the layer with the key {key[:12]}", f"Log: {log}")


def _extract(name: str, source: Region, target: Path) -> None:
    """Copy a region to a file. Raises ImageUnusable if it is not what it was when the build was planned."""
    sha = hashlib.sha256()
    with target.open("wb") as copied:
        for chunk in _chunks(source):
            sha.update(chunk)
            copied.write(chunk)
    if f"sha256:{sha.hexdigest()}" != source.digest:
        problem = f"digest mismatch: layer {name} in {source.path} is not what its manifest records"
        raise ImageUnusable(problem, "It was modified after publishing; report it to its publisher")


def _chunks(region: Region) -> Iterator[bytes]:
    try:
        with region.path.open("rb") as source:
            source.seek(region.offset)
            yield from read_chunks(source, region.size)
    except OSError as error:
        what = f"cannot read {region.path}: {error.strerror}"
        raise ImageUnusable(what, "If the version was removed, choose another one") from error
