"""Thin images, for file systems that can't share blocks: the lowest layer is a file of its own, once for all versions.

    STORE/bases/pytorch-ngc_9f2c41d0a7e3.sif      what the image starts from, with its definition
    STORE/pytorch_24.12-hd-py3-r4.sif             all that lies above, with labels and package list

Both are SIF files, cut from the one that was built and tested; an engine puts them together again:
`apptainer exec --overlay TOP.sif:ro BASE.sif`. The layout of a SIF is told in ctrain_runtime.sif.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Optional

from ctrain_builder import atomic
from ctrain_builder.digests import REGIONS, of_file, of_regions
from ctrain_builder.store.copy import settle, temporary
from ctrain_builder.store.sign import Signer
from ctrain_builder.store.writer import Writer
from ctrain_runtime import sif
from ctrain_runtime.errors import ImageUnusable, UsageError
from ctrain_runtime.manifest import Manifest, StoredFile
from ctrain_runtime.store import BASES

_ALIGNED = 4096  # as engines write partitions, so that a kernel can mount them
_CHUNK = 4 << 20


def split(
    image: Path,
    manifest: Manifest,
    file: Path,
    writer: Writer,
    done: Callable[[int], None],
    signer: Optional[Signer] = None,
) -> Manifest:
    """Write what lies above the base of `image` to `file`, and the base to the store unless it is there.

    `done` is told how many bytes are copied. Returns the manifest of both. Raises ImageUnusable; UsageError for an
    image without layers.
    """
    if manifest.flat or len(manifest.layers) < 2:
        raise UsageError(f"image {manifest.name} has no layers above its base", "Publish it without --thin")
    digest = of_regions(image, manifest.layers) if manifest.digest.startswith(REGIONS) else of_file(image)
    if digest != manifest.digest:
        raise _changed(image)
    lowest, *above = sif.partitions(image)
    for entry, layer in zip(above, manifest.layers[1:]):
        if of_file(image, entry.offset, entry.size) != layer.digest:
            raise _changed(image)
    entries = sif.read(image).entries
    system = [entry for entry in entries if entry in (lowest,) or entry.kind == sif.DEFINITION]
    below = _known(manifest, writer) or _add_base(image, manifest, system, writer, done, signer)
    cut(image, file, [entry for entry in entries if entry not in system], done)
    settle(file, writer.access)
    return replace(manifest, below=below, digest=of_file(file), size=file.stat().st_size)


def _known(manifest: Manifest, writer: Writer) -> Optional[StoredFile]:
    """The base in the store, if a published version has it, and signed if this one is to be."""
    for other in writer.store.images():
        same = other.manifest.layers[0].digest == manifest.layers[0].digest
        if other.manifest.below and same and other.manifest.signed >= manifest.signed:
            return other.manifest.below
    return None


def _add_base(
    image: Path,
    manifest: Manifest,
    system: Sequence[sif.SifObject],
    writer: Writer,
    done: Callable[[int], None],
    signer: Optional[Signer],
) -> StoredFile:
    folder = writer.folder(BASES)
    with temporary(folder, image.name) as file:
        cut(image, file, system, done)
        (lowest,) = sif.partitions(file)
        if of_file(file, lowest.offset, lowest.size) != manifest.layers[0].digest:
            raise _changed(image)
        settle(file, writer.access)
        digest = signer.sign(file) if signer else of_file(file)
        below = StoredFile(f"{manifest.layers[0].definition}_{digest[7:19]}.sif", digest, file.stat().st_size)
        file.replace(folder / below.name)
    atomic.sync_folder(folder)
    return below


def cut(
    image: Path, target: Path, entries: Sequence[sif.SifObject], done: Callable[[int], None] = lambda _: None
) -> None:
    """Make `target`, an existing file, a SIF with only these objects of `image`. Raises ImageUnusable.

    The others leave their places in the table free: engines give a new object, as a signature, the number of its place.
    """
    numbers = {entry.number for entry in entries}
    with image.open("rb") as source, target.open("r+b") as writer:
        *head, _, total, offset, length, start, _ = sif.HEADER.unpack(source.read(sif.HEADER.size))
        source.seek(offset)
        table, at = b"", start
        for fields in sif.DESCRIPTOR.iter_unpack(source.read(total * sif.DESCRIPTOR.size)):
            kind, used, number, group, link, where, size, _, *rest = fields
            if not used or number not in numbers:
                table += bytes(sif.DESCRIPTOR.size)
                continue
            begin = -(-at // _ALIGNED) * _ALIGNED
            _copy(source, where, writer, begin, size, done)
            table += sif.DESCRIPTOR.pack(kind, True, number, group, link, begin, size, begin - at + size, *rest)
            at = begin + size
        header = sif.HEADER.pack(*head, total - len(numbers), total, offset, length, start, at - start)
        writer.seek(0)
        writer.write(header.ljust(offset, b"\0") + table)
        writer.truncate(at)


def _copy(source: BinaryIO, where: int, writer: BinaryIO, begin: int, size: int, done: Callable[[int], None]) -> None:
    source.seek(where)
    writer.seek(begin)
    while size:
        chunk = source.read(min(_CHUNK, size))
        if not chunk:
            raise ImageUnusable(f"{source.name} became shorter while it was copied", "Build it again")
        writer.write(chunk)
        size -= len(chunk)
        done(writer.tell())


def _changed(image: Path) -> ImageUnusable:
    return ImageUnusable(f"{image} has changed since it was built and tested", "Build it again with: ctrain build")
