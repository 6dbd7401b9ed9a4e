"""What the %files of a definition bring into an image: one listing, hashed for the key and staged for the copy."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ctrain_builder.definition import Definition
from ctrain_runtime.errors import BuildError, ConfigError

_LITTER = "__pycache__"  # the building machine's byte code; running the tests must not make an image stale
_CHUNK = 1 << 20


@dataclass(frozen=True)
class SourceFile:
    """A regular file, links followed. Of its mode only the executable bit counts: the rest is the checkout's umask."""

    path: Path
    relative: PurePosixPath
    executable: bool
    digest: str

    @property
    def mode(self) -> int:
        return 0o755 if self.executable else 0o644


def listing(definition: Definition, root: Path) -> tuple[SourceFile, ...]:
    """Every file that the (rendered) definition copies, sorted. Folders without files are left out, as in git.

    Raises ConfigError.
    """
    return tuple(sorted(_files(definition, root), key=lambda file: file.relative))


def _files(definition: Definition, root: Path) -> Iterator[SourceFile]:
    for copy in definition.files:
        source = root / copy.source
        if not source.exists():
            raise ConfigError(f"{definition.path}: %files names {copy.source}, which is not in {root}")
        for path in _below(source):
            if not path.is_file():
                raise ConfigError(f"{definition.path}: %files names {copy.source}, but {path} is no regular file")
            yield SourceFile(path, PurePosixPath(path.relative_to(root)), os.access(path, os.X_OK), digest(path))


def _below(source: Path) -> Iterator[Path]:
    if not source.is_dir():
        yield source
        return
    for folder, folders, names in os.walk(source, followlinks=True):
        folders[:] = [name for name in folders if name != _LITTER]
        yield from (Path(folder) / name for name in names)


def digest(path: Path) -> str:
    """The SHA-256 of a file, as hex. A file that did not change in the meantime is read only once."""
    found = path.stat()
    return _digest(path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@functools.cache
def _digest(path: Path, *_stamp: int) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
    return sha.hexdigest()


def stage(files: Iterable[SourceFile], folder: Path) -> None:
    """Copy the files into `folder` under their relative paths, with modes that don't depend on the checkout.

    Raises BuildError when a file is no longer the one that was planned: the layer's key would not be true.
    """
    for file in files:
        target = folder / file.relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.path, target)
        if digest(target) != file.digest:
            raise BuildError(f"{file.path} has changed since the build began", "Build again")
        target.chmod(file.mode)
