"""Files of a directory that somebody else has filled: the root of an image, an overlay, what a container could write.

There a name may be a link to any file of the host, a FIFO that blocks whoever opens it, or a device. So every step of a
path is opened from the directory above it and never through a link, and only regular files are read or written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Optional, Union

from ctrain_runtime.errors import BuildError

Name = Union[str, PurePosixPath]  # relative to the root of a tree
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TOP = PurePosixPath()
_LARGEST = 256_000_000  # bytes of a file that is read as a whole


@dataclass(frozen=True)
class Entry:
    """Something in a tree. `at` is a path that reaches it without links, as long as the walk is here; `status` is of
    itself, not of what a link points to."""

    name: PurePosixPath
    status: os.stat_result
    at: str

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)


@dataclass(frozen=True)
class Tree:
    """`root` is a path of our own: nobody else could put a link in its place."""

    root: Path

    @contextlib.contextmanager
    def at(self, name: Name) -> Iterator[str]:
        """A path that reaches `name` without links, for what does not follow a link at its end.

        Raises BuildError where a step is no directory or may not be searched, FileNotFoundError where there is none.
        """
        path = PurePosixPath(name)
        with self._directory(path.parent) as directory:
            yield f"/proc/self/fd/{directory}/{path.name or '.'}"

    def walk(self, start: Name = _TOP) -> Iterator[Entry]:
        """All that is below the directory `start`; nothing if there is none. Raises BuildError."""
        directories = [PurePosixPath(start)] if self.status(start) else []
        while directories:
            above = directories.pop()
            with self._directory(above) as directory, os.scandir(directory) as names:
                for name in names:
                    at = f"/proc/self/fd/{directory}/{name.name}"
                    entry = Entry(above / name.name, name.stat(follow_symlinks=False), at)
                    if entry.is_directory:
                        directories.append(entry.name)
                    yield entry

    def status(self, name: Name) -> Optional[os.stat_result]:
        """What `name` is; None if there is nothing."""
        try:
            with self.at(name) as path:
                return os.lstat(path)
        except FileNotFoundError:
            return None

    def open(self, name: Name, mode: str = "rb") -> IO[Any]:
        """A regular file, opened for reading (rb) or changes (r+b). Raises BuildError, FileNotFoundError."""
        with self.at(name) as path:
            # First: to open a device may do something already.
            _require_regular(os.lstat(path), self.root / name)
            descriptor = os.open(path, _FILE | (os.O_RDWR if "+" in mode else os.O_RDONLY))
        file = os.fdopen(descriptor, mode)
        _require_regular(os.fstat(descriptor), self.root / name)
        return file

    def read(self, name: Name) -> Optional[str]:
        """The text of a regular file; None for all else. Raises BuildError."""
        status = self.status(name)
        if status is None or not stat.S_ISREG(status.st_mode):
            return None
        with self.open(name) as file:
            data: bytes = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise BuildError(f"{self.root / name} has more than {_LARGEST // 1_000_000} MB", "Remove it in %post")
        return data.decode("utf-8", "replace")

    def write(self, name: Name, data: Union[str, bytes], mode: int = 0o644) -> None:
        """Put a new file in the place of whatever has this name, and make its directories. Raises BuildError."""
        path = PurePosixPath(name)
        with self._directory(path.parent, make=True) as directory:
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path.name, dir_fd=directory)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
                descriptor = os.open(path.name, flags, mode, dir_fd=directory)
            except OSError as error:
                raise BuildError(f"{self.root / path} can't be replaced: {error.strerror}") from error
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            os.fchmod(descriptor, mode)

    def let_owner_read(self) -> None:
        """Give the owner what he lacks to read all: images have directories that nobody but root may enter."""
        for entry in self.walk():
            missing = (0o500 if entry.is_directory else 0o400 if entry.is_file else 0) & ~entry.status.st_mode
            if missing:
                Path(entry.at).chmod(stat.S_IMODE(entry.status.st_mode) | missing)

    def make_directory(self, name: Name) -> None:
        """Make a directory unless the name is taken already. Raises BuildError."""
        if self.status(name) is None:
            with self._directory(PurePosixPath(name), make=True):
                pass

    def move_out(self, name: Name, target: Path) -> None:
        """Move a regular file out of the tree. Raises BuildError, FileNotFoundError."""
        with self.at(name) as path:
            _require_regular(os.lstat(path), self.root / name)
            Path(path).rename(target)

    @contextlib.contextmanager
    def _directory(self, name: PurePosixPath, make: bool = False) -> Iterator[int]:
        """The descriptor of a directory; with `make` of a new one, if there is none."""
        descriptor = self._open_directory(name, make)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_directory(self, name: PurePosixPath, make: bool) -> int:
        descriptor, path = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), self.root
        for part in name.parts:
            above, path = descriptor, path / part
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=above)
                descriptor = os.open(part, _DIRECTORY, dir_fd=above)
            except OSError as error:
                raise _explained(error, path) from error
            finally:
                os.close(above)
        return descriptor


def remove(directory: Path) -> None:
    """Remove a directory with all that is in it, even if its owner may not write to parts of it. Raises OSError."""
    for entry in Tree(directory).walk():
        if entry.is_directory:
            Path(entry.at).chmod(0o700)
    shutil.rmtree(directory)


def _require_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BuildError(f"{path} must be a regular file, not a link, a FIFO or a device")


def _explained(error: OSError, path: Path) -> Exception:
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        return BuildError(f"{path} must be a directory, not a link or a file", "Let %post leave it a directory")
    return unreadable(path) if isinstance(error, PermissionError) else error


def unreadable(path: Path) -> BuildError:
    what = f"{path} of a layer can't be read by its own user"
    return BuildError(what, "Build as root, or give it a mode in %post")
