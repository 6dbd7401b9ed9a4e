"""Files that are whole or not there: written under a temporary name on the same file system, then renamed."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str, mode: int = 0o644, group: int = -1) -> None:
    """Replace `path` by a file with `text`, durably. `group` is a group ID; -1 leaves it to the system."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchown(file.fileno(), -1, group)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def move(source: Path, target: Path) -> None:
    """Put a finished file of the same file system in its place, durably; it replaces what is there."""
    sync_file(source)
    source.replace(target)
    sync_folder(target.parent)


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a rename is not until its folder is written."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
