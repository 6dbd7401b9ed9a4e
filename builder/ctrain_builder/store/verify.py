"""Reads everything in a store again, compares it with what it should be, and puts aside what is damaged.

A pass over terabytes takes hours and may be interrupted: what was found whole is noted in a file of the caller's, by
name, size and time, and not read again until a pass has come to its end.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ctrain_builder import atomic, record
from ctrain_builder.store import log
from ctrain_builder.store.writer import Writer
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.manifest import SCHEMA, read_manifest
from ctrain_runtime.store import QUARANTINE, RETIRED, Store

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Subject:
    """A manifest and its image. `gone`: the image was removed, and only the manifest is left."""

    manifest: Path
    image: Path
    gone: bool = False


@dataclass(frozen=True)
class Finding:
    """What is wrong with a version; "" for nothing."""

    subject: Subject
    problem: str


class Notes:
    """The images that this pass has found whole: name -> [size, time]."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._whole: dict[str, list[int]] = {}
        with contextlib.suppress(OSError, ValueError):
            self._whole = dict(json.loads(path.read_text(encoding="utf-8")))

    def has(self, image: Path) -> bool:
        return self._whole.get(image.name) == _facts(image)

    def add(self, image: Path) -> None:
        self._whole[image.name] = _facts(image)
        atomic.write_text(self._path, json.dumps(self._whole))

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def subjects(store: Store) -> list[Subject]:
    """What a store has: all versions, the retired ones too."""
    offered = [Subject(path, path.with_suffix(".sif")) for path in sorted(store.root.glob("*_*.json"))]
    names = {one.manifest.name for one in offered}  # a crash may have left a version in both places
    retired = [path for path in sorted((store.root / RETIRED).glob("*_*.json")) if path.name not in names]
    images = [store.root / f"{path.stem}.sif" for path in retired]
    return [*offered, *(Subject(path, image, not image.exists()) for path, image in zip(retired, images))]


def verify(
    wanted: Sequence[Subject], notes: Notes, jobs: int, done: Callable[[int], None] = lambda _: None
) -> Iterator[Finding]:
    """Check versions, `jobs` at once. `done` is told of the bytes that were read, from several threads."""
    with ThreadPoolExecutor(jobs) as pool:
        for subject, problem in zip(wanted, pool.map(lambda one: _problem(one, notes, done), wanted)):
            if not problem and not subject.gone:
                notes.add(subject.image)
            yield Finding(subject, problem)
    notes.clear()


def _problem(subject: Subject, notes: Notes, done: Callable[[int], None]) -> str:
    try:
        manifest = read_manifest(subject.manifest)
    except ConfigError as error:
        return str(error)
    if not _is_as_written(subject.manifest):
        return f"{subject.manifest} was changed since it was written"
    if manifest.file_name != f"{subject.manifest.stem}.sif":
        return f"{subject.manifest} is the manifest of {manifest.file_name}"
    if subject.gone:
        return ""
    if subject.image.is_symlink() or not subject.image.is_file():
        return f"{subject.image} is missing, or no plain file"
    size = subject.image.stat().st_size
    if size != manifest.size:
        return f"{subject.image} has {size} bytes, its manifest says {manifest.size}"
    if notes.has(subject.image):
        done(size)
        return ""
    digest = _digest(subject.image, done)
    return "" if digest == manifest.digest else f"{subject.image} is damaged: it has the digest {digest}"


def _is_as_written(path: Path) -> bool:
    """Whether a manifest's file is what ctrain writes, space by space. Of older schemas that is not known any more."""
    text = path.read_text(encoding="utf-8")
    data = json.loads(text)
    return data.get("schema") != SCHEMA or text == record.as_json(data)


def _digest(path: Path, done: Callable[[int], None]) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
            done(len(chunk))
    return f"sha256:{sha.hexdigest()}"


def _facts(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def quarantine(writer: Writer, finding: Finding) -> Path:
    """Put a damaged version aside; nobody finds it by name any more. Returns the folder it is in."""
    folder = writer.folder(QUARANTINE)
    subject = finding.subject
    name, _, rest = subject.image.stem.partition("_")
    writer.log(log.QUARANTINE, name, rest, why=finding.problem)
    for path in (subject.manifest, subject.image):  # the manifest first: without it the image is none
        with contextlib.suppress(FileNotFoundError):
            path.replace(folder / path.name)
    for changed in (writer.root, folder):
        atomic.sync_folder(changed)
    return folder
