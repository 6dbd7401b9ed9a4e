"""Files that are whole or not there: written under a temporary name on the same file system, then renamed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal


def write_text(path: Path, text: str, mode: int = 0o644, group: int = -1) -> None:
    """Replace `path` by a file with `text`, durably. `group` is a group ID; -1 leaves it to the system."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    _write(temporary, "w", text, mode, group)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def create_text(path: Path, text: str, mode: int = 0o644, group: int = -1) -> None:
    """Create `path` with `text`, durably; only a crash leaves a part of it. Raises FileExistsError."""
    _write(path, "x", text, mode, group)
    sync_directory(path.parent)


def _write(path: Path, how: Literal["w", "x"], text: str, mode: int, group: int) -> None:
    with path.open(how, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            os.fchown(file.fileno(), -1, group)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def move(source: Path, target: Path) -> None:
    """Put a finished file of the same file system in its place, durably; it replaces what is there."""
    sync_file(source)
    source.replace(target)
    sync_directory(target.parent)


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable: a rename is not until its directory is written."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
