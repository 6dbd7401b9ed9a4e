"""Removes the file of one version at once, whatever its age: one that has leaked a secret, for instance.

Its manifest stays in STORE/retired, so that its number is not given again and `sync` does not bring it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_builder.files import atomic
from ctrain_builder.store import lifecycle, log
from ctrain_builder.store.inventory import PUBLISHED, StoredVersion, file_size, stored_versions
from ctrain_builder.store.writer import LockedStore
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import ConfigError, ImageNotFound, StoreError
from ctrain_runtime.store.manifest import Manifest, read_manifest
from ctrain_runtime.store.store import QUARANTINE, RETIRED, PublishedImage, Store, is_gone

_NO_REASON = "removed by the store's administrators"


@dataclass(frozen=True)
class Removable:
    """A version with its files of `size` bytes in all (a second one, in quarantine, if it was copied again after it was
    damaged), its channels, and who needs it. `relatives`: published versions that have its topmost layer, and what
    leaks in it."""

    version: StoredVersion
    files: tuple[Path, ...]
    size: int
    channels: tuple[str, ...]
    needed_by: tuple[str, ...]
    relatives: tuple[str, ...]


def find_removable(store: Store, reference: str) -> Removable:
    """The version NAME:VERSION, in whatever state. Raises ImageNotFound; StoreError if its file is gone."""
    versions = {one.reference: one for one in stored_versions(store)}
    version = versions.get(reference)
    if version is None:
        hint = f"{suggest(reference, versions)} Available: {', '.join(versions) or 'none'}".strip()
        raise ImageNotFound(f"no version is called {reference!r}: name one as NAME:VERSION", hint)
    places = dict.fromkeys((version.image, store.root / QUARANTINE / version.image.name))
    files = tuple(path for path in places if not is_gone(path))
    if not files:
        raise StoreError(f"{reference} was removed before", "See: ctrain store list --all")
    needed_by = lifecycle.needed_by(store, version.image.name)
    channels = tuple(lifecycle.pointing(store, version.image.name))
    manifest = _manifest(version)
    relatives = lifecycle.relatives(store, [manifest] if manifest else [])
    return Removable(version, files, sum(map(file_size, files)), channels, needed_by, relatives)


def _manifest(version: StoredVersion) -> Optional[Manifest]:
    try:
        return read_manifest(version.manifest)
    except ConfigError:  # damaged, or of a newer ctrain: no reason to keep what leaks
        return None


def remove(writer: LockedStore, reference: str, why: str = "", force: bool = False) -> Removable:
    """Remove the file of a version; with `force` also if a channel or a job needs it: its channels then tell `why`.

    With a reason, the version counts as withdrawn: users are told why, and the same image is not published again.
    Raises as `find_removable`; StoreError for a version that is needed.
    """
    removable = find_removable(writer.store, reference)
    version, image = removable.version, removable.version.image
    if removable.needed_by and not force:
        hint = "Move its channels with: ctrain store promote, wait for its jobs, or pass --force"
        raise StoreError(f"{reference} is needed by {'; '.join(removable.needed_by)}", hint)
    manifest = _manifest(version)
    if manifest is None and version.state == PUBLISHED:
        hint = "Move it to quarantine first: ctrain store verify --quarantine --yes"
        raise StoreError(f"the manifest of {reference} is damaged, or of a newer ctrain", hint)
    digest = manifest.digest if manifest else ""
    writer.log(log.REMOVE, version.name, version.version, digest=digest, why=why)
    if manifest:
        offered = PublishedImage(manifest, writer.root / image.name, removable.channels)
        if why or removable.channels:
            lifecycle.take_out(writer, offered, why or _NO_REASON)
        else:
            lifecycle.retire_image(writer, offered)
    if manifest and version.manifest.parent.name == QUARANTINE:  # from where `sync` may bring a version back
        writer.write(writer.directory(RETIRED) / version.manifest.name, version.manifest.read_text(encoding="utf-8"))
        version.manifest.unlink()
    for path in removable.files:
        path.unlink()
        atomic.sync_directory(path.parent)
    return removable
