"""Publishes again what was retired, withdrawn or quarantined.

What can be restored is looked at twice: before the store's lock is taken, because an image in quarantine is read, which
takes minutes; and while it is held, because others (`gc`) may have removed it, or put another file there, meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from ctrain_builder.files import atomic
from ctrain_builder.store import channels, log
from ctrain_builder.store.inventory import (
    QUARANTINED,
    FileIdentity,
    StoredVersion,
    identify,
    is_withdrawn,
    stored_versions,
)
from ctrain_builder.store.writer import LockedStore
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import ImageNotFound, ImageUnusable, StoreError
from ctrain_runtime.store.manifest import read_manifest
from ctrain_runtime.store.store import QUARANTINE, RETIRED, WITHDRAWN, Store


@dataclass(frozen=True)
class Restorable:
    """A version that can be published again, and which files that was found out of."""

    version: StoredVersion
    identity: tuple[FileIdentity, ...]


def find_restorable(store: Store, reference: str) -> Restorable:
    """The version NAME:VERSION, with its files where they lie. An image in quarantine is read, which takes a while.

    Raises ImageNotFound; StoreError when its image is gone or it is published; ConfigError for its manifest;
    ImageUnusable for what is still damaged.
    """
    version = _locate(store, reference)
    identity = identify(version)
    manifest = read_manifest(version.manifest)
    if version.state == QUARANTINED and file_digest(version.image) != manifest.digest:
        hint = f"Replace it by a copy with the digest {manifest.digest}"
        raise ImageUnusable(f"{version.image} is still damaged: digest mismatch", hint)
    return Restorable(version, identity)


def _locate(store: Store, reference: str) -> StoredVersion:
    candidates = {one.reference: one for one in stored_versions(store, (RETIRED, QUARANTINE))}
    version = candidates.get(reference)
    if version is None:
        if any(image.manifest.reference == reference for image in store.images()):
            raise StoreError(f"{reference} is published; nothing to restore")
        problem = f"no retired, withdrawn or quarantined version is called {reference!r}"
        hint = f"{suggest(reference, candidates)} Available: {', '.join(candidates) or 'none'}".strip()
        raise ImageNotFound(problem, hint)
    if (store.root / version.manifest.name).exists():
        raise StoreError(f"{reference} is published", f"Remove {version.manifest} if it is not needed")
    if not version.image.is_file():
        again = "Build another: the same image is not published again"
        hint = again if is_withdrawn(store, version) else "Build and publish it again; it gets another number"
        raise StoreError(f"{reference} was removed", hint)
    return version


def restore(writer: LockedStore, checked: Restorable) -> None:
    """Publish it again; channels that it was withdrawn from point to it as before. Raises as `find_restorable`."""
    version = _locate(writer.store, checked.version.reference)
    if version != checked.version or identify(version) != checked.identity:
        raise StoreError(f"{version.reference} was changed by another command meanwhile", "Run the command again")
    manifest, image = read_manifest(version.manifest), writer.root / version.image.name
    text = version.manifest.read_text(encoding="utf-8")
    writer.log(log.RESTORE, manifest.name, manifest.version, digest=manifest.digest)
    if version.image != image:
        version.image.replace(image)
    writer.write(image.with_suffix(".json"), text)
    version.manifest.unlink()
    atomic.sync_directory(version.manifest.parent)
    note = image.with_suffix(WITHDRAWN)
    for channel, target in channels.links(writer.root, manifest.name).items():
        if target == note.name:
            channels.relink(writer, manifest.name, channel, image.name)
    note.unlink(missing_ok=True)
