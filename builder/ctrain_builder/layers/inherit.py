"""Layers that come from a parent image: each of its file systems, copied as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from ctrain_builder.layers import pack, sif_file
from ctrain_builder.layers.container import Container, LowerLayers
from ctrain_builder.layers.layer import copy_metadata
from ctrain_builder.parent import Part
from ctrain_runtime.digest import read_chunks
from ctrain_runtime.errors import ImageUnusable


def copy(container: Container, part: Part, log: Path, *, arch: str, is_base: bool) -> Path:
    """Copy a file system of a parent image. Returns a new SIF for the lowest, else the squashfs file, in the work
    directory. Raises BuildError, ImageUnusable."""
    packed = pack.packed(container)
    _extract(part, packed)
    if not is_base:
        return packed
    files = {"Singularity": "", **copy_metadata(container, LowerLayers(packed), log)}
    return sif_file.new(container, packed, arch, files, {}, log)


def _extract(part: Part, target: Path) -> None:
    """Copy the region to a file. Raises ImageUnusable if it is not what it was when the build was planned."""
    sha = hashlib.sha256()
    with target.open("wb") as copied:
        for chunk in _chunks(part):
            sha.update(chunk)
            copied.write(chunk)
    if f"sha256:{sha.hexdigest()}" != part.digest:
        problem = f"digest mismatch: layer {part.layer} in {part.file} is not what its manifest records"
        raise ImageUnusable(problem, "It was modified after publishing; report it to its publisher")


def _chunks(part: Part) -> Iterator[bytes]:
    try:
        with part.file.open("rb") as source:
            source.seek(part.offset)
            yield from read_chunks(source, part.size)
    except OSError as error:
        what = f"cannot read {part.file}: {error.strerror}"
        raise ImageUnusable(what, "If the version was removed, choose another one") from error
