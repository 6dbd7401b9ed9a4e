"""Regions of files; and the digest of an image by its regions, which takes no reading of partitions whose digests are
known.

Such digests are for images in a builder's cache, most of which was there before the build; a published one has its
file's. SHA-256 over a line `OFFSET SIZE DIGEST` for each partition, and for each region between two of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.errors import ImageUnusable
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import Layer

REGIONS = "sha256-regions:"
ReadAt = Callable[[int, int], bytes]  # gives so many bytes of an image, or fewer, from an offset on; b"" at the end


class NotAsBuilt(ImageUnusable):
    """The file of an image is not what its manifest records."""


@dataclass(frozen=True)
class Region:
    """Bytes of a file; `digest` is "" where it is not known."""

    path: Path
    offset: int
    size: int
    digest: str = ""


def regions(image: Path, layers: Sequence[Layer]) -> list[Region]:
    """All of an image's file; `layers` tell the digests of its partitions, unless it is flat. Raises ImageUnusable."""
    parts: list[Region] = []
    at, size = 0, image.stat().st_size
    partitions = sorted(zip(sif.partitions(image), layers), key=lambda pair: pair[0].offset)
    if len(partitions) != len(layers) or len(sif.partitions(image)) != len(layers):
        return [Region(image, 0, size)]  # a flat one
    for entry, layer in partitions:
        if entry.size != layer.size or entry.offset < at:
            raise ImageUnusable(f"{image} does not consist of the layers in its manifest")
        parts += [Region(image, at, entry.offset - at), Region(image, entry.offset, entry.size, layer.digest)]
        at = entry.offset + entry.size
    return [*parts, Region(image, at, size - at)]


def regions_digest(image: Path, layers: Sequence[Layer]) -> str:
    """As in sha256-regions:9f2c... Raises ImageUnusable."""
    parts = regions(image, layers)
    return _joined(parts, (one.digest or file_digest(image, one.offset, one.size) for one in parts))


class RegionHasher:
    """Computes the same from the bytes of a file, which are given to it from the first to the last."""

    def __init__(self, parts: Sequence[Region]) -> None:
        self._regions = parts
        self._digests: list[str] = []
        self._sha, self._left = hashlib.sha256(), 0
        self._begin()

    def update(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while rest and len(self._digests) < len(self._regions):
            taken = rest[: self._left]
            self._sha.update(taken)
            self._left -= len(taken)
            rest = rest[len(taken) :]
            while len(self._digests) < len(self._regions) and not self._left:
                self._digests.append(f"sha256:{self._sha.hexdigest()}")
                self._begin()

    def digest(self) -> str:
        return _joined(self._regions, iter(self._digests))

    def _begin(self) -> None:
        self._sha = hashlib.sha256()
        if len(self._digests) < len(self._regions):
            self._left = self._regions[len(self._digests)].size


def _joined(parts: Sequence[Region], digests: Iterator[str]) -> str:
    lines = "".join(f"{region.offset} {region.size} {digest}\n" for region, digest in zip(parts, digests))
    return f"{REGIONS}{hashlib.sha256(lines.encode()).hexdigest()}"
