"""What the %files of a definition bring into an image: one listing, hashed for the key and staged for the copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ctrain_builder.definition import Definition
from ctrain_runtime.errors import ConfigError

_LITTER = "__pycache__"  # the building machine's byte code; running the tests must not make an image stale


@dataclass(frozen=True)
class SourceFile:
    """A regular file, links followed. Of its mode only the executable bit counts: the rest is the checkout's umask."""

    path: Path
    relative: PurePosixPath
    executable: bool


def listing(definition: Definition, root: Path) -> tuple[SourceFile, ...]:
    """Every file that the (rendered) definition copies, sorted. Folders without files are left out, as in git."""
    return tuple(sorted(_files(definition, root), key=lambda file: file.relative))


def _files(definition: Definition, root: Path) -> Iterator[SourceFile]:
    for copy in definition.files:
        source = root / copy.source
        if not source.exists():
            raise ConfigError(f"{definition.path}: %files names {copy.source}, which is not in {root}")
        for path in _regular(source):
            yield SourceFile(path, PurePosixPath(path.relative_to(root)), os.access(path, os.X_OK))


def _regular(source: Path) -> Iterator[Path]:
    if source.is_file():
        yield source
        return
    for folder, folders, names in os.walk(source, followlinks=True):
        folders[:] = [name for name in folders if name != _LITTER]
        yield from (Path(folder) / name for name in names)


def stage(files: Iterable[SourceFile], folder: Path) -> None:
    """Copy the files into `folder` under their relative paths, with modes that don't depend on the checkout."""
    for file in files:
        target = folder / file.relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.path, target)
        target.chmod(0o755 if file.executable else 0o644)
