"""What lies below a prefix.

PREFIX/0.1.0/venv/                      a version: its own Python environment; immutable once it is complete
PREFIX/0.1.0/bin/ctrain                 starts it; nothing else is there, so that users keep their own python
PREFIX/0.1.0/share/                     completion for bash and zsh
PREFIX/0.1.0/ctrain-installation.json   written last: the version is complete
PREFIX/current                          a symlink to the version that users get
PREFIX/modulefiles/ctrain/0.1.0(.lua)   a module for each complete version
PREFIX/sites/, PREFIX/store/            site files and images, which no upgrade touches
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ctrain_builder.files import atomic, locks
from ctrain_runtime.base import config
from ctrain_runtime.base.paths import INSTALLATION, INSTALLED_SITES, INSTALLED_STORE
from ctrain_runtime.errors import ConfigError, CtrainError, DiskFullError, UsageError
from ctrain_runtime.store.store import STORE_MARKER

_LOCK = ".ctrain-install.lock"
_PATH = re.compile(r"/[\w/.+-]*")  # as PATH, the first line of scripts, Tcl and Lua take it without quotes
_PARTS = {"bin", "share", "venv"}


@dataclass(frozen=True)
class Installation:
    """A complete version: when it was installed, and from what, as pip names it."""

    version: str
    installed: str
    source: str

    @property
    def extras(self) -> tuple[str, ...]:
        """The optional packages' names, as in ctrain[build] @ URL."""
        names = re.match(r"ctrain\[([^]]*)\] @", self.source)
        return tuple(name.strip() for name in names[1].split(",")) if names else ()


@dataclass(frozen=True)
class Prefix:
    root: Path

    @property
    def current(self) -> Path:
        return self.root / "current"

    @property
    def modulefiles(self) -> Path:
        return self.root / "modulefiles"

    @property
    def sites(self) -> Path:
        return self.root / INSTALLED_SITES

    @property
    def store(self) -> Path:
        return self.root / INSTALLED_STORE

    def version(self, version: str) -> Path:
        return self.root / version

    def installations(self) -> list[Installation]:
        """The complete versions, in the order in which they were installed. Raises ConfigError."""
        files = [path for path in self.root.glob(f"*/{INSTALLATION}") if not path.parent.is_symlink()]
        return sorted(map(_read, files), key=lambda one: (one.installed, one.version))

    def current_version(self) -> str:
        """The version that users get, "" if there is none."""
        has_one = self.current.is_symlink() and (self.current / INSTALLATION).exists()
        return str(self.current.readlink()) if has_one else ""


def open_prefix(path: Path) -> Prefix:
    """The prefix at `path`, which need not exist. Raises UsageError for a path that cannot be one."""
    root = path.absolute()
    if not _PATH.fullmatch(str(root)):
        what = f"{root} has characters that PATH or the first line of scripts cannot hold"
        raise UsageError(what, "Choose a directory whose path has only letters, digits and . _ + -")
    if (root / STORE_MARKER).exists():
        raise UsageError(f"{root} is a store of images", "Choose another directory: --prefix DIR")
    return Prefix(root)


@contextlib.contextmanager
def changing(prefix: Prefix, say: Callable[[str], None]) -> Iterator[None]:
    """Only this process changes the prefix, which is made if it is missing. All users can read what is written."""
    before = os.umask(0o022)
    try:
        with _translate_os_errors(prefix.root):
            prefix.root.mkdir(parents=True, exist_ok=True)
            lock = prefix.root / _LOCK
            with locks.hold(lock, lambda holder: say(f"waiting for {holder}, which is installing"), machines=True):
                yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def _translate_os_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(root) from error
        where = error.filename or root
        hint = "Choose a directory that you can write to: --prefix DIR"
        raise CtrainError(f"cannot install to {root}: {where}: {error.strerror}", hint) from error


def no_space(root: Path) -> DiskFullError:
    return DiskFullError(f"no space left for {root}", "Free disk space and retry; nothing is half installed")


def make_directory(prefix: Prefix, version: str) -> Path:
    """The new, empty directory of a version. Removes what interrupted installations have left, of others, too."""
    path = prefix.version(version)
    for directory in {path, *(environment.parent for environment in prefix.root.glob("*/venv"))}:
        if directory.is_dir() and not directory.is_symlink() and _is_incomplete(directory):
            shutil.rmtree(directory)
    if os.path.lexists(path):
        raise UsageError(f"{path} exists, and ctrain did not make it", "Choose another directory: --prefix DIR")
    path.mkdir()
    return path


def complete(path: Path, installation: Installation) -> None:
    atomic.write_text(path / INSTALLATION, json.dumps(asdict(installation), indent=2) + "\n")


def _read(path: Path) -> Installation:
    """Without the keys of a newer ctrain: who has gone back to an older one must be able to switch to it again."""
    try:
        return config.load_known(Installation, dict(json.loads(path.read_text(encoding="utf-8"))), str(path))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error


def _is_incomplete(directory: Path) -> bool:
    """Whether it holds nothing but parts of a version, or nothing at all."""
    return {entry.name for entry in directory.iterdir()} <= _PARTS


def make_current(prefix: Prefix, version: str) -> None:
    """Point `current` to a version. Who follows the link gets the old one or the new one."""
    if prefix.current.exists() and not prefix.current.is_symlink():
        raise UsageError(f"{prefix.current} is not a symlink", "Choose another directory: --prefix DIR")
    atomic.link(prefix.current, Path(version))
