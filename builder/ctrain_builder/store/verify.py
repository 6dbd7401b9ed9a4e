"""Reads everything in a store again and compares it with what it should be.

A pass over terabytes takes hours and may be interrupted: what was found whole is noted in a file of the caller's, by
name, size and time, and not read again until a pass has come to its end. Only what was read whole and is wrong is
damaged. What cannot be read now, or only by a newer ctrain, could not be checked: that does not end the pass.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_builder.files import atomic, manifest_writer
from ctrain_builder.store import log
from ctrain_builder.store.inventory import REMOVED, FileIdentity, StoredVersion, identify, stored_versions
from ctrain_builder.store.lifecycle import needed_by, pointing
from ctrain_builder.store.writer import LockedStore
from ctrain_runtime.base.digest import read_chunks
from ctrain_runtime.errors import ConfigError, StoreError
from ctrain_runtime.store.manifest import SCHEMA, Unchecked, read_manifest
from ctrain_runtime.store.store import QUARANTINE, RETIRED, Store, is_gone


@dataclass(frozen=True)
class VerifyResult:
    """What is wrong with a version ("" for nothing), whose files were `read`. `is_damaged`: it was read whole, so that
    it is certainly wrong."""

    subject: StoredVersion
    read: tuple[FileIdentity, ...]
    problem: str = ""
    is_damaged: bool = False

    @property
    def is_current(self) -> bool:
        """Whether the version still has the files that were read: it may have been restored or removed meanwhile."""
        return identify(self.subject) == self.read


class VerifyProgress:
    """The images that this pass has found whole: name -> [size, time]."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._whole: dict[str, list[int]] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):
            self._whole = dict(json.loads(path.read_text(encoding="utf-8")))

    def has(self, image: Path) -> bool:
        return self._whole.get(image.name) == _facts(image)

    def add(self, image: Path) -> None:
        self._whole[image.name] = _facts(image)
        atomic.write_text(self._path, json.dumps(self._whole))

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def subjects(store: Store) -> list[StoredVersion]:
    """The versions to verify: also the retired ones, but none that is gone or in quarantine."""
    versions = (one for one in stored_versions(store, (".", RETIRED)) if one.state != REMOVED)
    return [one for one in versions if one.image.parent.name != QUARANTINE]


def verify(
    wanted: Sequence[StoredVersion], notes: VerifyProgress, jobs: int, done: Callable[[int], None] = lambda _: None
) -> Iterator[VerifyResult]:
    """Check versions, `jobs` at once. `done` is told of the bytes that were read, from several threads."""
    with ThreadPoolExecutor(jobs) as pool:
        for finding in pool.map(lambda subject: _finding(subject, notes, done), wanted):
            if not finding.problem:
                with contextlib.suppress(FileNotFoundError):  # of a retired version
                    notes.add(finding.subject.image)
            yield finding
    notes.clear()


def _finding(subject: StoredVersion, notes: VerifyProgress, done: Callable[[int], None]) -> VerifyResult:
    read = identify(subject)
    try:
        _check(subject, notes, done)
    except ConfigError as error:
        if is_gone(subject.manifest) or (subject.is_retired and is_gone(subject.image)):
            return VerifyResult(subject, read)  # it was retired or removed, maybe just now
        return VerifyResult(subject, read, error.message, not isinstance(error, Unchecked))
    return VerifyResult(subject, read)


def _check(subject: StoredVersion, notes: VerifyProgress, done: Callable[[int], None]) -> None:
    """Raises ConfigError for a damaged version; Unchecked for one that cannot be read."""
    manifest, image = read_manifest(subject.manifest), subject.image
    try:
        if not _is_as_written(subject.manifest):
            raise ConfigError(f"{subject.manifest} was changed since it was written")
        if manifest.file_name != image.name:
            raise ConfigError(f"{subject.manifest} is the manifest of {manifest.file_name}")
        if image.is_symlink() or not image.is_file():
            raise ConfigError(f"{image} is missing or not a regular file")
        if notes.has(image):
            done(manifest.size)
            return
        digest = _digest(image, done)
        if digest != manifest.digest:
            problem = f"digest mismatch: {image} is {digest} ({image.stat().st_size} bytes)"
            raise ConfigError(f"{problem}, its manifest records {manifest.digest} ({manifest.size} bytes)")
    except OSError as error:
        raise Unchecked(f"cannot read {error.filename or image}: {error.strerror}") from error


def _is_as_written(path: Path) -> bool:
    """Whether a manifest's file is what ctrain writes, space by space. Of older schemas that is not known any more."""
    text = path.read_text(encoding="utf-8")
    data = json.loads(text)
    return data.get("schema") != SCHEMA or text == manifest_writer.as_json(data)


def _digest(path: Path, done: Callable[[int], None]) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in read_chunks(file):
            sha.update(chunk)
            done(len(chunk))
    return f"sha256:{sha.hexdigest()}"


def _facts(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


@dataclass(frozen=True)
class Quarantined:
    """What became of a damaged version: its `directory` and the channels that lead nowhere now; or why it stays."""

    name: str
    directory: Optional[Path] = None
    channels: tuple[str, ...] = ()
    why: str = ""
    problem: Optional[StoreError] = None


def quarantine_all(writer: LockedStore, damaged: Sequence[VerifyResult], force: bool) -> Iterator[Quarantined]:
    """Move versions to quarantine/, but for those that were changed since they were read and, without `force`, those
    that somebody needs."""
    for finding in damaged:
        name, file_name = finding.subject.reference, finding.subject.image.name
        if not finding.is_current:
            yield Quarantined(name, why="it was changed while the store was read; verify it again")
        elif not force and (needed := needed_by(writer.store, file_name)):
            yield Quarantined(name, why=f"needed by {'; '.join(needed)}; --force moves it anyway")
        else:
            channels = pointing(writer.store, file_name)
            try:
                yield Quarantined(name, quarantine(writer, finding), tuple(channels))
            except StoreError as error:
                yield Quarantined(name, problem=error)


def quarantine(writer: LockedStore, finding: VerifyResult) -> Path:
    """Move a damaged version to quarantine/, from where `restore` publishes it again. Its channels lead nowhere then.

    Of a retired version only the image is moved. Returns the directory. Raises StoreError.
    """
    directory, subject = writer.directory(QUARANTINE), finding.subject
    files = [subject.image] if subject.is_retired else [subject.manifest, subject.image]  # without the first: no image
    if not is_gone(directory / subject.image.name):  # of an earlier one, gc may have left the manifest
        raise StoreError(f"{directory / subject.image.name} exists already", "Move it away, then verify again")
    for channel in ("", *pointing(writer.store, subject.image.name)):
        writer.log(log.QUARANTINE, subject.name, subject.version, channel=channel, why=finding.problem)
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            path.replace(directory / path.name)
    for changed in (writer.root, directory):
        atomic.sync_directory(changed)
    return directory
