"""What the %files of a definition bring into an image: one listing, hashed for the key and staged for the copy."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ctrain_builder.definitions.definition import Definition
from ctrain_builder.files.tree import Tree
from ctrain_runtime.base.digest import CHUNK_BYTES, read_chunks
from ctrain_runtime.errors import BuildError, ConfigError

IGNORE_FILE = ".ctrainignore"  # beside images.yaml
_LITTER = ("__pycache__",)  # the building machine's byte code; running the tests must not make an image stale
# Passwords, and all that a project ever had: in no image, unless %files names them
_PRIVATE = (".env", ".netrc", ".ssh", ".git", ".hg", ".svn")


@dataclass(frozen=True)
class SourceFile:
    """A regular file; `path` is without links, `relative` as the definition names it. Of its mode only the executable
    bit counts: the rest is the checkout's umask."""

    path: Path
    relative: PurePosixPath
    executable: bool
    digest: str

    @property
    def mode(self) -> int:
        return 0o755 if self.executable else 0o644


def listing(definition: Definition, root: Path) -> tuple[SourceFile, ...]:
    """Every file that the (rendered) definition copies, sorted. Directories without files are left out, as in git.

    Links are followed within the project `root`, and never out of it. Raises ConfigError.
    """
    return tuple(sorted(_files(definition, _real(root)), key=lambda file: file.relative))


def _files(definition: Definition, root: Path) -> Iterator[SourceFile]:
    left_out = (*_LITTER, *_PRIVATE, *_ignored(definition.path.parent.parent / IGNORE_FILE))
    for copy in definition.files:
        try:
            for path, relative in _below(root, copy.source, (), left_out):
                yield source_file(path, relative)
        except ConfigError as error:
            raise ConfigError(f"{definition.path}: %files names {copy.source}, {error.message}", error.hint) from error


def _ignored(path: Path) -> list[str]:
    """The patterns in an ignore file; none without one. Raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    patterns = [line.strip().rstrip("/") for line in lines if line.strip() and not line.startswith("#")]
    if any(pattern.startswith("!") for pattern in patterns):
        raise ConfigError(f"{path}: patterns with '!' are not supported", "What %files names itself is always copied")
    return patterns


def _is_left_out(name: PurePosixPath, patterns: Iterable[str]) -> bool:
    """Whether a pattern fits: one with a '/' the path in the project, another one the last name."""
    return any(fnmatchcase(str(name) if "/" in one else name.name, one.lstrip("/")) for one in patterns)


def source_file(path: Path, relative: PurePosixPath) -> SourceFile:
    """A file at a path without links, under another name."""
    return SourceFile(path, relative, os.access(path, os.X_OK), digest(path))


def below(path: Path) -> Iterator[tuple[Path, PurePosixPath]]:
    """(path without links, name below `path`) of a file, or of all files of a directory, sorted. Links are followed
    within it, and never out of it. Raises ConfigError."""
    root = _real(path)
    return _below(root, PurePosixPath(), ()) if root.is_dir() else iter([(root, PurePosixPath())])


def _below(
    root: Path, name: PurePosixPath, above: tuple[Path, ...], left_out: Iterable[str] = _LITTER
) -> Iterator[tuple[Path, PurePosixPath]]:
    """(path without links, name) of the files at and below `name`; `above` are the directories on the way there.
    `left_out`: patterns of what directories are searched without."""
    path = _real(root / name)
    if not path.is_relative_to(root):
        raise ConfigError(f"but {name} is a link out of the project", f"Copy its target into {root}")
    if any(directory.is_relative_to(path) for directory in above):
        raise ConfigError(f"but {name} is a link to a directory that contains it", "Remove the link")
    if not above and not path.exists():
        raise ConfigError(f"which is not in {root}")
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            if not _is_left_out(name / entry.name, left_out):
                yield from _below(root, name / entry.name, (*above, path), left_out)
    elif path.is_file():
        yield path, name
    else:
        raise ConfigError(f"but {root / name} is not a regular file")


def digest(path: Path) -> str:
    """The SHA-256 of a file, as hex. A file that did not change in the meantime is read only once."""
    real = _real(path)
    status = real.lstat()
    return _digest(real, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@functools.cache
def _digest(path: Path, *_stamp: int) -> str:
    sha = hashlib.sha256()
    with _open(path) as file:
        for chunk in read_chunks(file):
            sha.update(chunk)
    return sha.hexdigest()


def stage(files: Iterable[SourceFile], directory: Path) -> None:
    """Copy the files into `directory` under their relative paths, with modes that don't depend on the checkout.

    Raises BuildError when a file is no longer the one that was planned: the layer's key would not be true.
    """
    for file in files:
        target = directory / file.relative
        target.parent.mkdir(parents=True, exist_ok=True)
        with _open(file.path) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, CHUNK_BYTES)
        if digest(target) != file.digest:
            raise BuildError(f"{file.path} has changed since the build began", "Build again")
        target.chmod(file.mode)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _open(path: Path) -> IO[Any]:
    """A file at a path without links, even if somebody has just put one there."""
    return Tree(Path("/")).open(PurePosixPath(path).relative_to("/"))
