"""Published versions in one file, for sites without a network: a tar that holds what a store's directory would.

    STEM.json, STEM.sif, signatures/STEM.KEY.sif, scans/STEM.json, deprecated/STEM.json,
    channels/NAME_CHANNEL.sif -> ../STEM.sif, and ctrain-store.json
    ctrain-archive.json    the last member: the names of all before it; without it the file was cut short

`tar -xf` of it gives a store. ctrain extracts nothing: it reads members by names that it has made of checked words, and
refuses a file with any other member, or with two of one name.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Optional

from ctrain_builder.files import atomic, manifest_writer
from ctrain_builder.files.digests import ReadAt
from ctrain_builder.store.publish import CopyObserver
from ctrain_runtime.errors import ConfigError, CtrainError, DiskFullError, ImageUnusable, UsageError
from ctrain_runtime.store import notes
from ctrain_runtime.store import signatures as signed
from ctrain_runtime.store.manifest import Manifest, parse_manifest
from ctrain_runtime.store.notes import Note
from ctrain_runtime.store.store import CHANNELS, LAYOUT_VERSION, NAME_RE, STORE_MARKER, TAG_RE

if TYPE_CHECKING:
    from ctrain_builder.store.endpoints import Held, Source, Version

SUFFIX = ".tar"
_LAST = "ctrain-archive.json"
_WORD = r"[A-Za-z0-9][A-Za-z0-9.-]*"
_NOTE = rf"({'|'.join(notes.KINDS)})/{_WORD}_{_WORD}\.json"
_MEMBER = re.compile(rf"{_WORD}_{_WORD}\.(json|sif)|signatures/{_WORD}_{_WORD}\.sif|{_NOTE}|{STORE_MARKER}|{_LAST}")
_LINK = re.compile(rf"{CHANNELS}/({_WORD})_({_WORD})\.sif")
_TARGET = re.compile(rf"\.\./({_WORD}_{_WORD}\.sif)")
_BLOCK, _CHUNK = 512, 4 << 20
_SMALL = 8 << 20  # bytes of a manifest or a signature


class ArchiveSource:
    """An archive that is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._members = _members(path)

    def __str__(self) -> str:
        return str(self.path)

    def versions(self, names: Collection[str]) -> tuple[list[Version], list[CtrainError]]:
        """All versions of images with these names, or of all images; and what is damaged."""
        from ctrain_builder.store.endpoints import Version

        whole: list[Version] = []
        damaged: list[CtrainError] = []
        for member in (name for name in self._members if name.endswith(".json") and "_" in name and "/" not in name):
            try:
                manifest = self._manifest(member)
            except (ConfigError, ImageUnusable) as error:
                damaged.append(error)
                continue
            if not names or manifest.name in names:
                links = (_LINK.fullmatch(name) for name in self._links(manifest.file_name))
                whole.append(Version(manifest, tuple(link[2] for link in links if link and link[1] == manifest.name)))
        return whole, damaged

    def _manifest(self, member: str) -> Manifest:
        """Raises ConfigError; ImageUnusable where what it names is not there as it says."""
        manifest = parse_manifest(self._small(member), f"{self.path}: {member}")
        words = (manifest.tag, manifest.stack)
        if not NAME_RE.fullmatch(manifest.name) or not all(map(TAG_RE.fullmatch, words)) or manifest.release < 1:
            raise ConfigError(f"{self.path}: {member} is the manifest of no version")
        if Path(manifest.file_name).with_suffix(".json").name != member:
            raise ConfigError(f"{self.path}: {member} is the manifest of {manifest.file_name}")
        image = self._members.get(manifest.file_name)
        if image is None or image.size != manifest.size:
            raise ImageUnusable(
                f"{self.path}: {manifest.file_name} is missing, or not as large as its manifest records"
            )
        return manifest

    def _links(self, file_name: str) -> list[str]:
        return [
            name for name, member in self._members.items() if member.issym() and member.linkname == f"../{file_name}"
        ]

    @contextlib.contextmanager
    def reader(self, manifest: Manifest) -> Iterator[tuple[ReadAt, Optional[Path]]]:
        """What gives the bytes of a version."""
        begin = self._members[manifest.file_name].offset_data
        with self.path.open("rb") as file:
            yield functools.partial(_read_at, file.fileno(), begin, manifest.size), None

    def pointed(self, name: str, channel: str) -> str:
        """The version that a channel points to; "" where there is no such channel."""
        versions, _ = self.versions([name])
        return next((one.manifest.version for one in versions if channel in one.channels), "")

    def added_signatures(self, manifest: Manifest) -> dict[str, bytes]:
        """The signatures of a version, by key: those that are whole, and of this version."""
        by_key: dict[str, bytes] = {}
        begin = f"{signed.SIGNATURES}/{Path(manifest.file_name).stem}."
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "signature.sif")
            for member in (name for name in self._members if name.startswith(begin)):
                path.write_bytes(self._small(member))
                if signed.covers(path, manifest):
                    by_key.update({key: path.read_bytes() for key in signed.keys(path)[:1]})
        return by_key

    def notes(self, manifest: Manifest) -> list[Note]:
        """What was noted of a version. Raises ConfigError."""
        stem = Path(manifest.file_name).stem
        members = ((f"{directory}/{stem}.json", kind) for directory, kind in notes.KINDS.items())
        noted = (
            notes.parse(kind, self._small(member), f"{self.path}: {member}")
            for member, kind in members
            if member in self._members
        )
        return [note for note in noted if note.digest == manifest.digest]

    def _small(self, member: str) -> bytes:
        about = self._members[member]
        if about.size > _SMALL:
            raise ImageUnusable(f"{self.path}: {member} is too large ({about.size} bytes)")
        with self.path.open("rb") as file:
            return os.pread(file.fileno(), about.size, about.offset_data)


class ArchiveTarget:
    """A new archive. It has its name once `finish` was called: a file of that name is whole."""

    passes_on = False

    def __init__(self, path: Path) -> None:
        if not path.absolute().parent.is_dir():
            raise UsageError(f"cannot write {path}: its directory does not exist", "Create it, or name another file")
        if path.exists():
            raise UsageError(f"archive {path} exists", "An archive is written once: name another file, or remove it")
        self.path = path
        self._part = atomic.unfinished(path)
        self._names: list[str] = []
        self._file: Optional[IO[bytes]] = None

    def __str__(self) -> str:
        return str(self.path)

    def held(self, wanted: Sequence[Manifest]) -> list[Optional[Held]]:
        return [None] * len(wanted)

    def pointed(self, _name: str, _channel: str) -> str:
        return ""

    def put(self, manifest: Manifest, source: Source, watch: CopyObserver) -> None:
        """Bring a version here. Raises ImageUnusable for one that is not what its manifest records: then none is."""
        with self._writing() as file:
            begin = file.tell()
        with source.reader(manifest) as (read, _):
            digest = self._add(manifest.file_name, manifest.size, read, watch)
        if digest != manifest.digest:
            with self._writing() as file:
                file.seek(begin)
                file.truncate()
            self._names.remove(manifest.file_name)
            raise ImageUnusable(
                f"digest mismatch: the copy of {manifest.file_name} is {digest}", "Nothing was kept. Retry"
            )
        self._add_small(str(Path(manifest.file_name).with_suffix(".json")), manifest_writer.as_text(manifest).encode())

    def sign(self, manifest: Manifest, by_key: Mapping[str, bytes]) -> int:
        """Add the signatures of a version."""
        for key, content in by_key.items():
            path = signed.path_for(Path(manifest.file_name), key)
            self._add_small(str(path), content)
        return 0  # they came with it

    def note(self, manifest: Manifest, noted: Sequence[Note], _source: Source) -> None:
        """Add what is noted of a version."""
        directories = {kind: directory for directory, kind in notes.KINDS.items()}
        for note in noted:
            path = notes.path_for(Path(manifest.file_name), directories[type(note)])
            self._add_small(str(path), manifest_writer.as_json(asdict(note)).encode())

    def point(self, manifest: Manifest, channel: str, _source: Source, _say: Callable[[str], None]) -> None:
        """Make a channel point to a version that is here."""
        link = tarfile.TarInfo(f"{CHANNELS}/{manifest.name}_{channel}.sif")
        link.type, link.linkname, link.mode = tarfile.SYMTYPE, f"../{manifest.file_name}", 0o777
        with self._writing() as file:
            file.write(link.tobuf(tarfile.PAX_FORMAT))
        self._names.append(link.name)

    def finish(self) -> None:
        """Close the file, durably, and give it its name. Raises UsageError where one has come into being meanwhile."""
        self._add_small(STORE_MARKER, (json.dumps({"layout": LAYOUT_VERSION}) + "\n").encode())
        self._add_small(_LAST, manifest_writer.as_json({"layout": LAYOUT_VERSION, "members": self._names}).encode())
        with self._writing() as file:
            file.write(bytes(2 * _BLOCK))
            file.flush()
            os.fsync(file.fileno())
            file.close()
        if self.path.exists():
            self.discard()
            raise UsageError(f"{self.path} exists", "An archive is written once: name another file")
        atomic.move(self._part, self.path)

    def discard(self) -> None:
        """Remove what is unfinished."""
        if self._file:
            with contextlib.suppress(OSError):  # what could not be written is not wanted
                self._file.close()
        self._part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[IO[bytes]]:
        """The file. What the system says against it becomes DiskFullError or UsageError."""
        try:
            if self._file is None:
                self._file = self._part.open("xb")
            yield self._file
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(f"disk full: {self.path} is not written", "Free space, or name another") from error
            hint = "FAT has no files of 4 GB: use exFAT or ext4" if error.errno == errno.EFBIG else ""
            raise UsageError(f"cannot write {self.path}: {error.strerror}", hint) from error

    def _add_small(self, name: str, content: bytes) -> None:
        source = io.BytesIO(content)
        self._add(
            name, len(content), lambda size, _offset: source.read(size), CopyObserver(lambda _: None, lambda _: None)
        )

    def _add(self, name: str, size: int, read: ReadAt, watch: CopyObserver) -> str:
        """Write a member; the digest of what was written."""
        whole, at = hashlib.sha256(), 0
        about = tarfile.TarInfo(name)
        about.size, about.mode = size, 0o444
        self._names.append(name)
        with self._writing() as file:
            file.write(about.tobuf(tarfile.PAX_FORMAT))
            while at < size and (chunk := read(min(_CHUNK, size - at), at)):
                whole.update(chunk)
                file.write(chunk)
                at += len(chunk)
                watch.done(at)
            file.write(bytes(-at % _BLOCK))
        return f"sha256:{whole.hexdigest()}"


def _members(path: Path) -> dict[str, tarfile.TarInfo]:
    """The members of an archive, by name. Raises ImageUnusable for anything that ctrain would not have written."""
    try:
        with tarfile.open(path, "r:") as file:
            listed = file.getmembers()
    except FileNotFoundError as error:
        raise UsageError(f"archive {path} not found", "Write one with: ctrain store sync STORE FILE.tar") from error
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        raise ImageUnusable(f"{path} is no archive of ctrain, or was cut short: {error}", "Copy it again") from error
    members: dict[str, tarfile.TarInfo] = {}
    for member in listed:
        is_file = member.isreg() and not member.issparse() and _MEMBER.fullmatch(member.name)
        is_link = member.issym() and _LINK.fullmatch(member.name) and _TARGET.fullmatch(member.linkname)
        if not (is_file or is_link) or member.name in members:
            what = f"{path} has a member that no archive of ctrain has: {member.name!r}"
            raise ImageUnusable(what, "Nothing was taken from it; make it with: ctrain store sync")
        members[member.name] = member
    if not listed or listed[-1].name != _LAST:
        raise ImageUnusable(f"{path} was cut short: its last member is missing", "Copy it again")
    return members


def _read_at(descriptor: int, begin: int, end: int, size: int, offset: int) -> bytes:
    return os.pread(descriptor, max(0, min(size, end - offset)), begin + offset)
