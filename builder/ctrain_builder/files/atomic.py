"""Files and directories that are whole or not there: written under a temporary name beside their own, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def unfinished(path: Path) -> Path:
    """A new name for what becomes `path`. Not by a number of processes: two machines have the same ones."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def write_text(path: Path, text: str, mode: int = 0o644, group: int = -1) -> None:
    """Replace `path` by a file with `text`, durably. `group` is a group ID; -1 leaves it to the system."""
    write_bytes(path, text.encode("utf-8"), mode, group)


def write_bytes(path: Path, content: bytes, mode: int = 0o644, group: int = -1) -> None:
    """The same for bytes."""
    temporary = unfinished(path)
    _write(temporary, content, mode, group)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def create_text(path: Path, text: str, mode: int = 0o644, group: int = -1) -> None:
    """Create `path` with `text`, durably; only a crash leaves a part of it. Raises FileExistsError."""
    _write(path, text.encode("utf-8"), mode, group)
    sync_directory(path.parent)


def _write(path: Path, content: bytes, mode: int, group: int) -> None:
    """Raises FileExistsError."""
    with path.open("xb") as file:
        try:
            file.write(content)
            file.flush()
            os.fchown(file.fileno(), -1, group)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def create_directory(path: Path, mode: int, group: int = -1) -> None:
    """Create `path`, durably; nobody sees it with another mode or group, whatever the umask. One that exists stays."""
    temporary = unfinished(path)
    temporary.mkdir()
    try:
        os.chown(temporary, -1, group)
        temporary.chmod(mode)
        if not path.exists():
            temporary.rename(path)
    except OSError:  # another has just created it, and has files in it
        if not path.is_dir():
            raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.rmdir()
    sync_directory(path.parent)


def link(path: Path, target: Path) -> None:
    """Make `path` a symlink to `target`, durably; it replaces what is there."""
    temporary = unfinished(path)
    temporary.symlink_to(target)
    temporary.replace(path)
    sync_directory(path.parent)


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
