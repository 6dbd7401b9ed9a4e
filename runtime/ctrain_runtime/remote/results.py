"""The files of a run on their way from a login node: listed and sent there, checked and written here."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Callable

from ctrain_runtime.errors import RemoteError
from ctrain_runtime.remote.ssh import Connection

CHUNK = 1 << 20


@dataclass(frozen=True)
class RemoteFile:
    """A file by its name in the run directory; `modified` in nanoseconds."""

    name: str
    size: int
    modified: int


@dataclass(frozen=True)
class Fetched:
    """What was written, in files and bytes; how many files were the same, and which were kept, as they are newer."""

    files: int
    size: int
    same: int
    kept: tuple[str, ...]


def listed(run: Path, names: Sequence[str]) -> tuple[list[RemoteFile], list[str]]:
    """The files of a run below these names, and the links among them, which are not sent. Raises OSError."""
    files, links = [], []
    for path in _walk(run, names):
        name = path.relative_to(run).as_posix()
        if path.is_symlink():
            links.append(name)
        elif path.is_file():
            status = path.stat()
            files.append(RemoteFile(name, status.st_size, status.st_mtime_ns))
    return files, links


def _walk(run: Path, names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        path = run / name
        if path.is_symlink() or not path.is_dir():
            yield path
            continue
        for folder, folders, files in os.walk(path):
            folders.sort()
            links = [each for each in folders if Path(folder, each).is_symlink()]
            yield from (Path(folder, each) for each in sorted([*files, *links]))


def send(run: Path, wanted: Sequence[Sequence[object]], out: IO[bytes]) -> None:
    """Write parts of files, (name, first byte, size), one behind the other; ends early where one has become shorter.
    Raises OSError."""
    for name, offset, size in wanted:
        descriptor = os.open(run / str(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            file.seek(int(str(offset)))
            left = int(str(size)) - file.tell()
            while left > 0:
                chunk = file.read(min(left, CHUNK))
                if not chunk:
                    return
                out.write(chunk)
                left -= len(chunk)


def read_list(host: str, data: object) -> list[RemoteFile]:
    """The files of an answer. Raises RemoteError for what is none."""
    files = []
    for entry in data if isinstance(data, list) else [None]:
        if not (isinstance(entry, list) and [type(part) for part in entry] == [str, int, int] and entry[1] >= 0):
            raise RemoteError(f"{host}: cannot read the list of files", "Install the same ctrain on both machines")
        files.append(RemoteFile(*entry))
    return files


def fetch(
    link: Connection,
    run: str,
    files: Sequence[RemoteFile],
    target: Path,
    names: Collection[str],
    *,
    overwrite: bool,
    report: Callable[[str, str], None],
) -> Fetched:
    """Bring files of `run` to the directory `target`; goes on where an earlier call has stopped. Raises RemoteError,
    OSError."""
    due, kept, same = list[tuple[RemoteFile, Path]](), list[str](), 0
    for file in files:
        path = place(link.host, target, file.name, names)
        status = path.lstat() if os.path.lexists(path) else None
        if status and (status.st_size, status.st_mtime_ns) == (file.size, file.modified):
            same += 1
        elif status and status.st_mtime_ns > file.modified and not overwrite:
            kept.append(file.name)
        else:
            due.append((file, path))
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    size = sum(file.size for file, _ in due)
    with tempfile.TemporaryFile() as request:
        wanted = [(file.name, _begun(_part(path, file)), file.size) for file, path in due]
        request.write(json.dumps(wanted).encode())
        request.seek(0)
        with link.answer({"what": "send", "run": run}, request) as stream:
            for number, (file, path) in enumerate(due):
                report(f"fetching {target.name}", f"file {number + 1} of {len(due)}")
                _receive(stream, file, path)
    report("", "")
    return Fetched(len(due), size, same, tuple(kept))


def place(host: str, target: Path, name: str, names: Collection[str]) -> Path:
    """Where a file goes. Raises RemoteError for a name that runs do not have, or that leads out of `target`."""
    parts = name.split("/")
    if parts[0] not in names or not all(parts) or {".", ".."} & set(parts) or "\0" in name:
        raise RemoteError(f"{host} offers a file that no run has: {name!r}", "Nothing was written")
    path = target.joinpath(*parts)
    for above in [path, *path.parents][1 : len(parts)]:
        if above.is_symlink():
            raise RemoteError(f"{above} is a link", "Remove it, or fetch to another directory with --to")
    return path


def _part(path: Path, file: RemoteFile) -> Path:
    """Where the file is until it is whole: of another state of it, nothing is continued."""
    state = hashlib.sha256(repr(file).encode(errors="surrogateescape")).hexdigest()[:16]
    return path.with_name(f".{state}.part")


def _begun(part: Path) -> int:
    try:
        return part.lstat().st_size
    except FileNotFoundError:
        return 0


def _receive(stream: IO[bytes], file: RemoteFile, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = _part(path, file)
    with part.open("ab") as out:
        left = file.size - out.tell()
        while left > 0:
            chunk = stream.read(min(left, CHUNK))
            if not chunk:
                raise EOFError
            out.write(chunk)
            left -= len(chunk)
    os.utime(part, ns=(file.modified, file.modified))
    part.replace(path)
