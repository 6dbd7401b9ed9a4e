"""Publishes again what was retired, withdrawn or quarantined."""

from __future__ import annotations

from ctrain_builder import atomic
from ctrain_builder.store import channels, log
from ctrain_builder.store.inventory import QUARANTINED, StoredVersion, stored_versions
from ctrain_builder.store.writer import LockedStore
from ctrain_runtime.digest import file_digest
from ctrain_runtime.errors import ImageNotFound, ImageUnusable, StoreError
from ctrain_runtime.manifest import read_manifest
from ctrain_runtime.store import QUARANTINE, RETIRED, WITHDRAWN, Store
from ctrain_runtime.suggest import suggest


def find_restorable(store: Store, reference: str) -> StoredVersion:
    """The version NAME:VERSION, with its files where they lie. An image in quarantine is read, which takes a while.

    Raises ImageNotFound; StoreError when its image is gone or it is published; ConfigError for its manifest;
    ImageUnusable for what is still damaged.
    """
    candidates = {one.reference: one for one in stored_versions(store, (RETIRED, QUARANTINE))}
    found = candidates.get(reference)
    if found is None:
        problem = f"no retired, withdrawn or quarantined version is called {reference!r}"
        raise ImageNotFound(problem, f"{suggest(reference, candidates)} Available: {', '.join(candidates)}".strip(" :"))
    if (store.root / found.manifest.name).exists():
        raise StoreError(f"{reference} is published", f"Remove {found.manifest} if it is not needed")
    if not found.image.is_file():
        raise StoreError(f"{reference} was removed", "Build and publish it again; it gets another number")
    manifest = read_manifest(found.manifest)
    if found.state == QUARANTINED and file_digest(found.image) != manifest.digest:
        hint = f"Replace it by a copy with the digest {manifest.digest}"
        raise ImageUnusable(f"{found.image} is still damaged: digest mismatch", hint)
    return found


def restore(writer: LockedStore, found: StoredVersion) -> None:
    """Publish it again; channels that it was withdrawn from point to it as before."""
    manifest, image = read_manifest(found.manifest), writer.root / found.image.name
    text = found.manifest.read_text(encoding="utf-8")
    writer.log(log.RESTORE, manifest.name, manifest.version, digest=manifest.digest)
    if found.image != image:
        found.image.replace(image)
    writer.write(image.with_suffix(".json"), text)
    found.manifest.unlink()
    atomic.sync_directory(found.manifest.parent)
    note = image.with_suffix(WITHDRAWN)
    for channel, target in channels.links(writer.root, manifest.name).items():
        if target == note.name:
            channels.relink(writer, manifest.name, channel, image.name)
    note.unlink(missing_ok=True)
