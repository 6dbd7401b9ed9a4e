"""Parent images: a published version, or any SIF file, that an image of images.yaml is built on (`from:`).

Each file system of the parent becomes a layer of the image as it is, byte for byte. Its digest, and nothing that the
parent's manifest claims, decides over the layer's key: a manifest can't pass off another content as a layer of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_builder.files.digests import Region
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.errors import ConfigError, ImageUnusable
from ctrain_runtime.images import image as images
from ctrain_runtime.images.image import Image
from ctrain_runtime.images.trust import require_trusted
from ctrain_runtime.site.model import Site
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import Layer
from ctrain_runtime.store.store import Store

STORE = "store:"
_SQUASHFS = b"hsqs"
_UNSAFE = re.compile(r"[^A-Za-z0-9-]+")
Facts = Callable[[str, Callable[[], dict[str, str]]], dict[str, str]]  # as Cache.memory.fact_or


@dataclass(frozen=True)
class Parent:
    """A parent image. `layers`: its file systems, the lowest first, each with the name of the layer that it becomes.
    `image` is None for a file without a manifest."""

    title: str  # as in pytorch:24.12-hd-r3, or the file's name
    digest: str  # of its file
    layers: tuple[tuple[str, Region], ...]
    image: Optional[Image] = None


def check(reference: str) -> None:
    """Raise ConfigError unless `reference` is store:NAME[:CHANNEL|:VERSION], store:NAME@DIGEST or the path of a SIF."""
    if reference.startswith(STORE):
        valid = reference != STORE and not images.is_path(reference[len(STORE) :])
    else:
        valid = images.is_path(reference) and "://" not in reference
    if not valid:
        hint = "Write it as store:NAME:VERSION or ./FILE.sif"
        raise ConfigError(f"from {reference!r} is neither a published image nor a SIF file", hint)


def find(reference: str, stores: Callable[[], list[Store]], machine: str, facts: Facts) -> Parent:
    """The parent image `reference`, which is as `check` wants it, its path absolute.

    `machine` is the output of `uname -m`; `facts` keeps the digests of a file that had to be read.
    Raises ImageNotFound, ImageUnusable, StoreError.
    """
    path = Path(reference)
    if reference.startswith(STORE):
        return _described(images.find((reference[len(STORE) :],), stores(), machine), facts)
    if path.is_file() and not path.resolve().with_suffix(".json").is_file():
        return _plain(path.resolve(), machine, facts)
    return _described(images.find((reference,), [], machine), facts)


def _described(image: Image, facts: Facts) -> Parent:
    """A parent with a manifest: where that tells the layers' digests, nothing is read."""
    manifest = image.manifest
    entries = sif.partitions(image.path)
    layers: Sequence[Optional[Layer]] = manifest.layers
    if len(layers) != len(entries):  # a flat image, whose one file system none of them is
        layers = [None] * len(entries)
    if any(layer and layer.size != entry.size for layer, entry in zip(layers, entries)):
        problem = f"{image.path} does not consist of the layers in its manifest"
        raise ImageUnusable(problem, "Copy or publish it again")
    title = manifest.reference if manifest.release else image.path.name
    names = [layer.definition if layer else manifest.name for layer in layers]
    known = [layer.digest if layer else "" for layer in layers]
    return Parent(title, manifest.digest, _layers(image.path, names, known, facts), image)


def _plain(path: Path, machine: str, facts: Facts) -> Parent:
    """A file that ctrain did not make."""
    architecture = sif.check(path)
    if architecture != images.OCI_ARCH.get(machine, machine):
        problem = f"architecture mismatch: {path} is {architecture}, this machine is {machine}"
        raise ImageUnusable(problem, "Select another image")
    count = len(sif.partitions(path))
    digest = facts(_stamp(path, "file"), lambda: {"digest": file_digest(path)})["digest"]
    return Parent(path.name, digest, _layers(path, [path.stem] * count, [""] * count, facts))


def _layers(path: Path, names: Sequence[str], known: Sequence[str], facts: Facts) -> tuple[tuple[str, Region], ...]:
    """The file systems of an image; what digests are not `known` is read."""
    entries = sif.partitions(path)
    for entry in entries:
        _require_squashfs(path, entry)
    return tuple(
        (name, Region(path, entry.offset, entry.size, digest or _read_digest(path, entry, facts)))
        for entry, name, digest in zip(entries, _unique(names), known)
    )


def _require_squashfs(path: Path, entry: sif.SifObject) -> None:
    """Raise ImageUnusable for another file system, or one that is encrypted."""
    with path.open("rb") as file:
        file.seek(entry.offset)
        if file.read(len(_SQUASHFS)) != _SQUASHFS:
            problem = f"cannot build on {path}: its file system {entry.number} is encrypted or not a squashfs"
            raise ImageUnusable(problem, f"Convert it: apptainer build NEW.sif {path}")


def _read_digest(path: Path, entry: sif.SifObject, facts: Facts) -> str:
    name = _stamp(path, str(entry.number))
    return facts(name, lambda: {"digest": file_digest(path, entry.offset, entry.size)})["digest"]


def _stamp(path: Path, subject: str) -> str:
    """Changes when the file does."""
    about = path.stat()
    return f"parent-{about.st_dev}-{about.st_ino}-{about.st_size}-{about.st_mtime_ns}-{about.st_ctime_ns}-{subject}"


def _unique(wanted: Sequence[str]) -> list[str]:
    """Names of layers that can be parts of file names, no two of them equal."""
    names: list[str] = []
    for name in (_UNSAFE.sub("-", text).strip("-") or "parent" for text in wanted):
        others = (f"{name}-{number}" for number in range(2, len(wanted) + 2))
        names.append(next(other for other in (name, *others) if other not in names))
    return names


def require_trust(parent: Parent, site: Site) -> None:
    """Raise ImageUnusable unless the site's signature policy lets the parent run. Raises SiteError, EngineError."""
    if parent.image:
        require_trusted(parent.image, site)
    elif site.require_signature:
        problem = f"{parent.title} has no manifest, and site {site.name} requires images that are signed as published"
        raise ImageUnusable(problem, "Build on a published version: from: store:NAME:VERSION")
