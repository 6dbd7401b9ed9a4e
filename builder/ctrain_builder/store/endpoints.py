"""Where published versions are: in a store's directory; in an archive; or in a registry, where an image is a repository
and its versions and channels are tags. All are read and written in the same way, an archive only once."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

from ctrain_builder.files import manifest_writer
from ctrain_builder.files.digests import ReadAt, Region
from ctrain_builder.registry import artifacts
from ctrain_builder.store import channels, deprecate, log, scan, signatures
from ctrain_builder.store.archive import ArchiveSource, ArchiveTarget
from ctrain_builder.store.copy import fill, resumable_file, resume_offset, shared
from ctrain_builder.store.inventory import PUBLISHED, stored_versions
from ctrain_builder.store.publish import CopyObserver, commit_version, reserve
from ctrain_builder.store.writer import LockedStore, Permissions, lock_store, translate_os_errors
from ctrain_runtime.errors import (
    ConfigError,
    CtrainError,
    ImageNotFound,
    ImageUnusable,
    RegistryError,
    StoreError,
    UsageError,
)
from ctrain_runtime.registry.client import Reference, RegistryClient, parse
from ctrain_runtime.store import notes
from ctrain_runtime.store import signatures as signed
from ctrain_runtime.store.manifest import Manifest, is_version, read_manifest
from ctrain_runtime.store.notes import Note, Scan
from ctrain_runtime.store.store import NAME_RE, RETIRED, TAG_RE, PublishedImage, is_gone, open_store, pending_manifest

SCHEME = "oras://"
_SIGNATURE_TAG = re.compile(r"(.+)\.[0-9a-f]{16}\.sig")  # the version, and the key's ID as in the name of its file


@dataclass(frozen=True)
class Version:
    """A version that is offered, and the channels that point to it."""

    manifest: Manifest
    channels: tuple[str, ...]


@dataclass(frozen=True)
class Held:
    """What a place has under the name of a version. `offered`: it was not retired. `problem`: why it cannot be told."""

    digest: str
    offered: bool = True
    problem: Optional[StoreError] = None


class NameTaken(StoreError):
    """A file that is no version has a version's name."""


class StoreEndpoint:
    """A store in a directory."""

    passes_on = False  # what comes here stays with those who have the file system

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    def versions(self, names: Collection[str]) -> tuple[list[Version], list[CtrainError]]:
        """All versions of images with these names, or of all images; and what is damaged."""
        scan = open_store(self.root).scan()
        versions = [Version(one.manifest, one.channels) for one in scan.images]
        return [one for one in versions if not names or one.manifest.name in names], list(scan.damaged)

    @contextlib.contextmanager
    def reader(self, manifest: Manifest) -> Iterator[tuple[ReadAt, Optional[Path]]]:
        """What gives the bytes of a version, and the file that has them, if there is one."""
        path = self.root / manifest.file_name
        with path.open("rb") as file:
            yield functools.partial(os.pread, file.fileno()), path

    def held(self, wanted: Sequence[Manifest]) -> list[Optional[Held]]:
        """What there is of each version."""
        store = open_store(self.root)
        digests = {one.digest for one in wanted}
        held: dict[str, Held] = {}
        for version in (one for one in stored_versions(store) if one.state != PUBLISHED):
            with contextlib.suppress(ConfigError):
                digest = read_manifest(version.manifest).digest
                if version.is_retired or digest not in digests:  # what is wanted and in quarantine may come again
                    held[version.image.name] = Held(digest, False)
        held.update({one.path.name: Held(one.manifest.digest) for one in store.images()})
        for one in wanted:
            name = Path(one.file_name).with_suffix(".json")
            for path in (self.root / name, self.root / RETIRED / name):
                if one.file_name not in held and not is_gone(path):
                    hint = "See: ctrain doctor. If it is damaged: ctrain store verify --quarantine --yes, then sync"
                    problem = StoreError(f"{path} is damaged, or of a newer ctrain", hint)
                    held[one.file_name] = Held("", False, problem)
        return [held.get(one.file_name) for one in wanted]

    def pointed(self, name: str, channel: str) -> str:
        """The version that a channel points to; "" where there is no such channel."""
        images = open_store(self.root).images()
        manifests = (one.manifest for one in images if one.manifest.name == name and channel in one.channels)
        return next((manifest.version for manifest in manifests), "")

    def put(self, manifest: Manifest, source: Source, watch: CopyObserver) -> None:
        """Bring a version here. Raises ImageUnusable, DiskFullError, StoreError, RegistryError."""
        part = f"{manifest.file_name}.{manifest.digest[-12:]}"
        with translate_os_errors(self.root), resumable_file(self.root, part, watch.say) as file:
            if needs_copy(self.held([manifest])[0], manifest, self):
                with source.reader(manifest) as (read, path):
                    known = shared(path, manifest, open_store(self.root).images()) if path else {}
                    _receive(file, manifest, read, known, watch)
                with lock_store(self.root, watch.say) as writer:
                    if needs_copy(self.held([manifest])[0], manifest, self):  # again: others write meanwhile
                        _reserve(writer, manifest)
                        commit_version(writer, file, manifest, log.SYNC, f"from {source}")
            file.unlink(missing_ok=True)

    def added_signatures(self, manifest: Manifest) -> dict[str, bytes]:
        """The signatures that were added to a version, by key. What they claim is verified by those who run it."""
        paths = [path for path in signed.added(self.root / manifest.file_name) if signed.covers(path, manifest)]
        return {key: path.read_bytes() for path in paths for key in signed.keys(path)[:1]}

    def sign(self, manifest: Manifest, by_key: Mapping[str, bytes]) -> int:
        """Add signatures to a version that is here, unless it has them; how many were added."""
        image = PublishedImage(manifest, self.root / manifest.file_name, ())

        def missing() -> list[signatures.Signature]:
            paths = {key: signed.path_for(image.path, key) for key in by_key}
            return [signatures.Signature(key, by_key[key]) for key, path in paths.items() if not path.exists()]

        if not missing():
            return 0
        with lock_store(self.root) as writer:
            added = missing()  # again: others sign meanwhile
            for signature in added:
                signatures.put(writer, image, signature)
        return len(added)

    def notes(self, manifest: Manifest) -> list[Note]:
        """What was noted of a version. Raises ConfigError."""
        image = self.root / manifest.file_name
        noted = (notes.read_scan(image, manifest), notes.read_deprecation(image, manifest))
        return [note for note in noted if note]

    def note(self, manifest: Manifest, noted: Sequence[Note], source: Source) -> None:
        """Keep what another place has noted of a version that is here, but no scan that is older than its own. Raises
        ConfigError."""
        image = PublishedImage(manifest, self.root / manifest.file_name, ())

        def due() -> list[Note]:
            known = {type(note): note for note in self.notes(manifest)}
            return [note for note in noted if _is_news(note, known.get(type(note)))]

        if not due():
            return
        with lock_store(self.root) as writer:
            for note in due():  # again: others write meanwhile
                if isinstance(note, Scan):
                    scan.keep(writer, image, note)
                else:
                    deprecate.keep(writer, image, note, str(source))

    def point(
        self, manifest: Manifest, channel: str, source: Source, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """Make a channel point to a version that is here. Raises StoreError if it is not, or no longer."""
        with lock_store(self.root, say) as writer:
            published = {one.path.name: one for one in writer.store.images() if one.manifest.digest == manifest.digest}
            image = published.get(manifest.file_name)
            if image is None:
                problem = writer.store.absence(Path(manifest.file_name).stem) or "is not published"
                what = f"channel {channel} of {manifest.name} stays: {manifest.version} {problem} in {self}"
                raise StoreError(what, "Run the command again")
            channels.point(writer, channel, image, log.SYNC, f"from {source}")


def _is_news(note: Note, known: Optional[Note]) -> bool:
    if isinstance(note, Scan) and isinstance(known, Scan):
        return note.when > known.when
    return note != known


def _reserve(writer: LockedStore, manifest: Manifest) -> None:
    """Take the name of a version. Raises NameTaken where something has it that this did not put there."""
    path = writer.root / manifest.file_name
    pending = pending_manifest(path)
    if pending.exists():  # an interrupted sync's: the lock is held
        writer.write(pending, manifest_writer.as_text(manifest))
    elif not reserve(writer, manifest):
        raise NameTaken(f"{path} exists, but has no manifest", "Check what it is, and move it out of the store")


def _receive(file: Path, wanted: Manifest, read: ReadAt, known: Mapping[int, Region], watch: CopyObserver) -> None:
    """Bring the bytes of a version to `file`, resuming what an earlier try has left there. Raises ImageUnusable."""
    access = Permissions(file.parent.stat())
    while True:
        present = resume_offset(file)
        copied = fill(file, wanted.size, read, access, (), known, watch.done, present)
        if copied.digest == wanted.digest:
            return
        file.chmod(0o600)
        os.truncate(file, 0)
        if not present:
            file.unlink()
            what = f"digest mismatch: the copy of {wanted.file_name} is {copied.digest}"
            raise ImageUnusable(what, f"Expected {wanted.digest}; nothing was kept. Retry")


class RegistryEndpoint:
    """A place in a registry: HOST[:PORT]/PATH. In the directory `uploads` is kept how far uploads have come."""

    passes_on = True  # who can read it is the registry's to decide

    def __init__(self, where: str, client: RegistryClient, uploads: Path) -> None:
        self._where, self._client, self._uploads = where.rstrip("/"), client, uploads
        with contextlib.suppress(ConfigError):
            if parse(f"{self._where}/x").name == f"{self._where}/x":
                return
        raise UsageError(f"{SCHEME}{where} is not a path in a registry", f"Write it as {SCHEME}HOST[:PORT]/PATH")

    def __str__(self) -> str:
        return f"{SCHEME}{self._where}"

    def versions(self, names: Collection[str]) -> tuple[list[Version], list[CtrainError]]:
        """All versions of images with these names, or of all images; and what is damaged or not ours. Raises
        ImageNotFound where nothing is: nobody makes a place in a registry, so that any mistyped one is there."""
        manifests: dict[str, Manifest] = {}
        tags: dict[str, list[str]] = {}
        left_out: list[CtrainError] = []
        for ref in self._tags(names):
            try:
                manifest = self._read(ref)
            except (artifacts.Foreign, ConfigError) as error:
                left_out.append(error)
                continue
            if manifests.setdefault(manifest.file_name, manifest) != manifest:
                raise RegistryError(
                    f"{ref} and other tags have different images of version {manifest.version}", "Remove one there"
                )
            tags.setdefault(manifest.file_name, []).append(ref.tag)
        if not (manifests or left_out):
            raise ImageNotFound(f"{self} has no images", "Check the path, and whether your login may list it")
        others = {file: tuple(tag for tag in tags[file] if tag != manifests[file].version) for file in manifests}
        return [Version(manifest, others[file]) for file, manifest in manifests.items()], left_out

    def _tags(self, names: Collection[str]) -> Iterator[Reference]:
        if not names:
            host = self._where.partition("/")[0]
            below = (f"{host}/{one}".partition(f"{self._where}/") for one in self._client.repositories(host))
            names = [name for before, _, name in below if not before and NAME_RE.fullmatch(name)]
        for name in names:
            for tag in sorted(self._client.tags(f"{self._where}/{name}")):
                if not _SIGNATURE_TAG.fullmatch(tag):
                    yield self._ref(name, tag)

    def _ref(self, name: str, tag: str) -> Reference:
        return parse(f"{self._where}/{name}:{tag}")

    def _read(self, ref: Reference) -> Manifest:
        """What a tag points to. Nothing that the registry says may lead out of a store."""
        manifest = artifacts.read(self._client, ref)
        name, words = ref.repository.rpartition("/")[2], (manifest.tag, manifest.stack)
        if manifest.name != name or not NAME_RE.fullmatch(name) or not all(map(TAG_RE.fullmatch, words)):
            raise artifacts.Foreign(
                f"{ref} calls itself {manifest.name!r} {manifest.version!r}", "It was put there by hand"
            )
        if ref.tag != manifest.version and is_version(ref.tag):
            raise RegistryError(
                f"{ref} holds {name} {manifest.version}", f"Report it to the administrators of {ref.host}"
            )
        if ref.tag != manifest.version and not TAG_RE.fullmatch(ref.tag):
            raise artifacts.Foreign(
                f"{ref} is not a channel of a store", "Their names are letters, digits, '.' and '-'"
            )
        return manifest

    @contextlib.contextmanager
    def reader(self, manifest: Manifest) -> Iterator[tuple[ReadAt, Optional[Path]]]:
        yield artifacts.Download(self._client, self._ref(manifest.name, manifest.version), manifest.digest).read, None

    def held(self, wanted: Sequence[Manifest]) -> list[Optional[Held]]:
        """What there is of each version. Raises RegistryError for what is not ours."""
        refs = [self._ref(one.name, one.version) for one in wanted]
        return [Held(self._read(ref).digest) if self._client.has(ref) else None for ref in refs]

    def pointed(self, name: str, channel: str) -> str:
        """The version that a channel points to; "" where there is no such channel. Raises StoreError, RegistryError."""
        if is_version(channel):
            raise StoreError(f"channel {channel} of {name} has the name of a version", "Registries have tags for both")
        ref = self._ref(name, channel)
        return self._read(ref).version if self._client.has(ref) else ""

    def put(self, manifest: Manifest, source: Source, watch: CopyObserver) -> None:
        """Bring a version here. Raises ImageUnusable, RegistryError."""
        ref = self._ref(manifest.name, manifest.version)
        with source.reader(manifest) as (read, _):
            artifacts.push(self._client, ref, manifest, read, self._uploads, watch.done)
        if needs_copy(self.held([manifest])[0], manifest, self):
            artifacts.tag(self._client, ref, manifest)

    def added_signatures(self, manifest: Manifest) -> dict[str, bytes]:
        """The signatures that were added to a version, by key: those that are whole, and of this version."""
        by_key: dict[str, bytes] = {}
        tags = self._client.tags(f"{self._where}/{manifest.name}")
        matches = (match for match in map(_SIGNATURE_TAG.fullmatch, tags) if match and match[1] == manifest.version)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "signature.sif")
            for match in matches:
                with contextlib.suppress(artifacts.Foreign):  # somebody else's tag
                    path.write_bytes(artifacts.read_small(self._client, self._ref(manifest.name, match[0])))
                    if signed.covers(path, manifest):
                        by_key.update({key: path.read_bytes() for key in signed.keys(path)[:1]})
        return by_key

    def sign(self, manifest: Manifest, by_key: Mapping[str, bytes]) -> int:
        """Add signatures to a version that is here, unless it has them; how many were added."""
        refs = {key: self._ref(manifest.name, f"{manifest.version}.{signed.key_id(key)}.sig") for key in by_key}
        missing = {key: ref for key, ref in refs.items() if not self._client.has(ref)}
        for key, ref in missing.items():
            artifacts.push_small(self._client, ref, by_key[key], f"{Path(manifest.file_name).stem}.{ref.tag}")
        return len(missing)

    def notes(self, _manifest: Manifest) -> list[Note]:
        return []  # a registry has no place for them

    def note(self, _manifest: Manifest, _noted: Sequence[Note], _source: Source) -> None:
        pass

    def point(self, manifest: Manifest, channel: str, _: Source, _say: Callable[[str], None]) -> None:
        """Make a channel point to a version that is here."""
        artifacts.tag(self._client, self._ref(manifest.name, channel), manifest)


Source = Union[StoreEndpoint, RegistryEndpoint, ArchiveSource]
Target = Union[StoreEndpoint, RegistryEndpoint, ArchiveTarget]


def needs_copy(held: Optional[Held], manifest: Manifest, where: Target) -> bool:
    """Whether a place has nothing of a version yet. Raises StoreError where it has something else under its name."""
    if held and held.problem:
        raise held.problem
    if held and held.digest != manifest.digest:
        what = f"{where} has a different {manifest.name} {manifest.version}: {held.digest[:19]}"
        raise StoreError(
            f"{what}, not {manifest.digest[:19]}",
            "A version never changes: publish yours with another number, or to another store",
        )
    return held is None
