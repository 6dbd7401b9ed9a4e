"""Announces that a version will go: until when it may be used, why, and what to use instead. Nothing else changes."""

from __future__ import annotations

import datetime
from dataclasses import asdict

from ctrain_builder.files.manifest_writer import as_json
from ctrain_builder.store import log
from ctrain_builder.store.lifecycle import named_versions
from ctrain_builder.store.writer import LockedStore
from ctrain_runtime.errors import StoreError, UsageError
from ctrain_runtime.store import notes
from ctrain_runtime.store.notes import DEPRECATED, Deprecation
from ctrain_runtime.store.references import resolve
from ctrain_runtime.store.store import PublishedImage, Store


def find(store: Store, reference: str, use: str) -> PublishedImage:
    """The version NAME:VERSION that is to be deprecated. Raises ImageNotFound, also of what to use instead; StoreError;
    UsageError where that is the version itself."""
    [image] = named_versions(store, [reference])
    if use and resolve([store], use).path == image.path:
        raise UsageError(f"--use {use} is {image.manifest.reference} itself", "Name another version or channel")
    return image


def deprecate(writer: LockedStore, reference: str, until: datetime.date, use: str, reason: str) -> PublishedImage:
    """Note it of a version; a note before is replaced."""
    image = find(writer.store, reference, use)
    keep(writer, image, Deprecation(image.manifest.digest, until.isoformat(), reason, use))
    return image


def keep(writer: LockedStore, image: PublishedImage, note: Deprecation, source: str = "") -> None:
    """`source`: the place that it was copied from."""
    why = f"until {note.until}: {note.reason}{source and f' (from {source})'}"
    writer.log(log.DEPRECATE, image.manifest.name, image.manifest.version, digest=note.digest, why=why)
    writer.directory(DEPRECATED)
    writer.write(notes.path_for(image.path, DEPRECATED), as_json(asdict(note)))


def undo(writer: LockedStore, reference: str) -> PublishedImage:
    """Remove the note. Raises StoreError without one."""
    image = find(writer.store, reference, "")
    path = notes.path_for(image.path, DEPRECATED)
    if not path.exists():
        raise StoreError(f"{image.manifest.reference} is not deprecated", "List versions with: ctrain store list")
    writer.log(log.UNDEPRECATE, image.manifest.name, image.manifest.version, digest=image.manifest.digest)
    path.unlink()
    return image
