"""Publishes again what was retired, withdrawn or quarantined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ctrain_builder import atomic
from ctrain_builder.store import channels, log
from ctrain_builder.store.writer import LockedStore
from ctrain_runtime.digest import file_digest
from ctrain_runtime.errors import ImageNotFound, ImageUnusable, StoreError
from ctrain_runtime.manifest import Manifest, file_stem, read_manifest, version_of
from ctrain_runtime.store import CHANNELS, QUARANTINE, RETIRED, WITHDRAWN, Store, channel_target, list_directory


@dataclass(frozen=True)
class Restorable:
    """A version that is not offered, and where its files are."""

    manifest: Manifest
    manifest_file: Path
    image: Path


def find_restorable(store: Store, reference: str) -> Restorable:
    """The version NAME:VERSION, with its files where they lie. An image in quarantine is read, which takes a while.

    Raises ImageNotFound; StoreError when its image is gone or it is published; ConfigError for its manifest;
    ImageUnusable for what is still damaged.
    """
    stem = file_stem(*reference.partition(":")[::2])
    manifest_file = next((path for path in _manifests(store) if path.stem == stem), None)
    if manifest_file is None:
        known = ", ".join(f"{path.stem.partition('_')[0]}:{version_of(path.stem)}" for path in _manifests(store))
        problem = f"no retired, withdrawn or quarantined version is called {reference!r}"
        raise ImageNotFound(problem, f"Available: {known or 'none'}")
    if (store.root / manifest_file.name).exists():
        raise StoreError(f"{reference} is published", f"Remove {manifest_file} if it is not needed")
    candidates = (store.root / name / f"{stem}.sif" for name in (".", QUARANTINE))
    image = next((path for path in candidates if path.is_file()), None)
    if image is None:
        raise StoreError(f"{reference} was removed", "Build and publish it again; it gets another number")
    manifest = read_manifest(manifest_file)
    if QUARANTINE in (manifest_file.parent.name, image.parent.name) and file_digest(image) != manifest.digest:
        hint = f"Replace it by a copy with the digest {manifest.digest}"
        raise ImageUnusable(f"{image} is still damaged: digest mismatch", hint)
    return Restorable(manifest, manifest_file, image)


def _manifests(store: Store) -> Iterator[Path]:
    for name in (RETIRED, QUARANTINE):
        yield from list_directory(store.root / name, "*_*.json")


def restore(writer: LockedStore, found: Restorable) -> None:
    """Publish it again; channels that it was withdrawn from point to it as before."""
    manifest, image = found.manifest, writer.root / found.image.name
    text = found.manifest_file.read_text(encoding="utf-8")
    writer.log(log.RESTORE, manifest.name, manifest.version, digest=manifest.digest)
    if found.image != image:
        found.image.replace(image)
    writer.write(image.with_suffix(".json"), text)
    found.manifest_file.unlink()
    atomic.sync_folder(found.manifest_file.parent)
    note = image.with_suffix(WITHDRAWN)
    for link in list_directory(writer.root / CHANNELS, f"{manifest.name}_*.sif"):
        if channel_target(link) == note.name:
            channels.relink(writer, manifest.name, link.stem.partition("_")[2], image.name)
    note.unlink(missing_ok=True)
