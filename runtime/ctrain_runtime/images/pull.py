"""Pulls images of registries into a directory that users can share: once, and whole or not at all.

    CACHE/sha256-DIGEST.sif          an image, never changed
    CACHE/oci-sha256-DIGEST-ARCH.sif an image of docker:// by its digest in registries: a symlink to its file
    CACHE/NAME-HASH.sif              a reference: a symlink to the image that it meant when it was pulled
    CACHE/.ENTRY.lock                held by the process that pulls the image of one of these names
    CACHE/.ENTRY.*/                  a pull that is running, or was killed

A symlink is made after its image is complete; so readers need no lock, and no network. Whoever may write to the
directory is trusted: it must not be world-writable.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

from ctrain_runtime.base import command
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.base.file_locks import lock_open_file
from ctrain_runtime.base.text import format_size
from ctrain_runtime.engines import apptainer
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ConfigError, CtrainError, DiskFullError, RegistryError, UsageError
from ctrain_runtime.store import sif

LIBRARY = "library://"
SCHEMES = ("docker://", "oras://", LIBRARY)
Report = Callable[[str, str], None]  # what is being done, and how far it is
_REFERENCE = re.compile(r"[a-z]+://\w[\w.:/@+-]*", re.ASCII)
_IMAGE = re.compile(r"sha256-([0-9a-f]{64})\.sif")
_LOG_TAIL_BYTES = 4096
_STALL_SECONDS = 300.0  # without any change to the engine's files: it waits for its registry without end
_CHECK_SECONDS = 30.0  # between two checks: layers can have very many files


@dataclass(frozen=True)
class PulledImage:
    """The file of an image, and its digest (sha256:9f2c...)."""

    path: Path
    digest: str


@dataclass(frozen=True)
class ResolvedReference:
    """The image that a reference means in its registry.

    `digest`: that of the manifest for docker://, else of the file; `entry`: its name in every cache; `reference` pulls
    it.
    """

    digest: str
    entry: str
    reference: str


def check_reference(reference: str) -> None:
    """Raise UsageError unless `reference` is one that engines pull."""
    if not reference.startswith(SCHEMES) or not _REFERENCE.fullmatch(reference):
        raise UsageError(
            f"invalid image reference {reference!r}", "As in: docker://HOST/NAME:TAG, oras:// or library://"
        )
    if reference.startswith(LIBRARY) and reference.count("/") < 5:
        hint = "Write library://HOST/ENTITY/COLLECTION/NAME:TAG; the Sylabs Cloud has HOST library.sylabs.io"
        raise UsageError(f"{reference} does not name its library, and engines have no common default", hint)


def find_cached(reference: str, caches: Iterable[Path]) -> Optional[PulledImage]:
    """The image that `reference` meant when it was pulled into one of `caches`. Raises UsageError, ConfigError."""
    check_reference(reference)
    return _find(link_path(cache, reference) for cache in caches)


def find_resolved(resolved: ResolvedReference, caches: Iterable[Path]) -> Optional[PulledImage]:
    """The image that a reference means, if any reference was pulled as it into one of `caches`. Raises ConfigError."""
    return _find(cache / resolved.entry for cache in caches)


def _find(entries: Iterable[Path]) -> Optional[PulledImage]:
    existing = [entry for entry in entries if entry.parent.is_dir()]
    for entry in existing:
        _check_trusted(entry.parent)
    return next(filter(None, map(_read_entry, existing)), None)


def pull(
    reference: str,
    resolved: Optional[ResolvedReference],
    cache: Path,
    engine: Engine,
    report: Report,
    *,
    again: bool = False,
) -> PulledImage:
    """Pull `reference` into `cache`, unless the image that it is `resolved` to is in it.

    If that image is unknown (None), pull unless another process has just done so, or in any case with `again`. Raises
    UsageError, RegistryError, DiskFullError, ImageUnusable, ConfigError; CtrainError if the cache cannot be written to.
    Then no file is left.
    """
    check_reference(reference)
    link = link_path(cache, reference)
    entry = cache / resolved.entry if resolved else link
    if not cache.is_absolute():
        raise ConfigError(f"image cache {cache} is not an absolute path", "Set `image_cache` of the site")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _check_trusted(cache)
        with _lock(entry, lambda: report(f"waiting for another process to pull {reference}", "")) as locked:
            image = None if again and not resolved else _read_entry(entry)
            for killed in cache.glob(f".{entry.stem}.*/") if locked else ():
                shutil.rmtree(killed, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f".{entry.stem}.", dir=cache) as directory:
                image = image or _pull(reference, resolved, cache, Path(directory), engine, report)
                for name in {entry, link}:
                    if not _IMAGE.fullmatch(name.name):  # else it is the image itself
                        _point(name, image, Path(directory))
                return image
    except OSError as error:
        kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else CtrainError
        hint = "Set `image_cache` of the site to a directory with space"
        raise kind(f"cannot write to the image cache {cache}: {error.strerror}", hint) from error
    finally:
        report("", "")


def link_path(cache: Path, reference: str) -> Path:
    """The symlink of a reference, with a name that is readable, and another one for each, also on each architecture."""
    readable = re.sub(r"[^\w.-]+", "_", reference.partition("://")[2], flags=re.ASCII)[-80:].lstrip(".-")
    return cache / f"{readable}-{hashlib.sha256(f'{reference} {platform.machine()}'.encode()).hexdigest()[:12]}.sif"


def _read_entry(entry: Path) -> Optional[PulledImage]:
    """The image to which an entry of a cache points, or which it is; None without one."""
    try:
        name = entry.readlink().name if entry.is_symlink() else entry.name
    except OSError:  # replaced just now
        return None
    digest, path = _IMAGE.fullmatch(name), entry.with_name(name)
    return PulledImage(path, f"sha256:{digest[1]}") if digest and path.is_file() else None


def _point(entry: Path, image: PulledImage, directory: Path) -> None:
    """Make `entry` a symlink to the image."""
    new = directory / entry.name
    new.symlink_to(image.path.name)
    new.replace(entry)


def _check_trusted(cache: Path) -> None:
    """Raise ConfigError if anybody could put images into the directory."""
    if cache.stat().st_mode & 0o002:
        raise ConfigError(f"image cache {cache} is world-writable", f"Run: chmod o-w {shlex.quote(str(cache))}")


@contextlib.contextmanager
def _lock(link: Path, report_wait: Callable[[], None]) -> Iterator[bool]:
    """Hold the lock of a reference, which ends with this process; yields False on file systems without locks, where two
    processes may pull the same image at once. Raises OSError."""
    path, locked = link.with_name(f".{link.stem}.lock"), True
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # another user's
            os.fchmod(descriptor, _mode(path.parent, 0o666))
        try:
            lock_open_file(descriptor, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report_wait()
            lock_open_file(descriptor, path, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            locked = False
        yield locked
    finally:
        os.close(descriptor)


def _mode(cache: Path, mode: int) -> int:
    """`mode` for those who may read, or write to, the cache."""
    return mode & (cache.stat().st_mode | 0o600)


def _pull(
    reference: str, resolved: Optional[ResolvedReference], cache: Path, directory: Path, engine: Engine, report: Report
) -> PulledImage:
    new, log = directory / "image.sif", directory / "log"

    report(f"pulling {reference}", "")
    argv = apptainer.pull_argv(engine, resolved.reference if resolved else reference, new)
    # Where the engine unpacks layers, it leaves them when it is ended at a bad moment.
    variable = f"{engine.name.upper()}_TMPDIR"
    parent = os.environ.get(variable)
    if parent and not Path(parent).is_dir():
        raise ConfigError(f"{variable}={parent} is not a directory", "Create it, or unset the variable")
    with _scratch(Path(parent or tempfile.gettempdir())) as scratch:
        stall = _Stall(reference, (directory, Path(scratch)))

        def tick() -> None:
            with contextlib.suppress(FileNotFoundError):  # of layers, the engine makes the file at the end
                report(f"pulling {reference}", format_size(new.stat().st_size))
            stall.check(time.monotonic())

        unset = {"APPTAINER_LIBRARY": "", "SINGULARITY_LIBRARY": ""}  # each would contradict the library of a reference
        if command.run_logged(argv, log, env={**os.environ, **unset, variable: scratch}, tick=tick):
            raise _failure(reference, cache, log)
    sif.check(new)
    report(f"verifying {reference}", "")
    digest = file_digest(new)
    if reference.startswith(LIBRARY) and resolved and digest != resolved.digest:  # engines verify all others
        problem = f"digest mismatch for {reference}: announced {resolved.digest}, received {digest}"
        raise RegistryError(problem, "Run it again: the tag may just have moved. Else report it to the library")
    image = cache / f"{digest.replace(':', '-')}.sif"
    if not image.is_file():  # else another reference, or an earlier pull, means the same
        new.chmod(_mode(cache, 0o644))
        with new.open("rb") as file:
            os.fsync(file.fileno())
        new.replace(image)
    return PulledImage(image, digest)


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[str]:
    """A directory for the engine, removed at the end; those that killed processes of this machine have left, too."""
    prefix, suffix = "ctrain-pull-", f"@{socket.gethostname()}"
    for left in parent.glob(f"{prefix}*{suffix}"):
        if not Path("/proc", left.name[len(prefix) :].partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)  # another user's stays
    with tempfile.TemporaryDirectory(suffix, f"{prefix}{os.getpid()}-", parent) as path:
        yield path


class _Stall:
    """Notices when an engine's files no longer change: engines wait for a registry that falls silent without end."""

    def __init__(self, reference: str, directories: tuple[Path, ...]) -> None:
        self._reference, self._directories = reference, directories
        self._size, self._changed = -1, 0.0
        self._next_check = 0.0

    def check(self, now: float) -> None:
        """Raise RegistryError if they have not changed for too long."""
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_SECONDS
        size = sum(map(_bytes_below, self._directories))
        if size != self._size:
            self._size, self._changed = size, now
        elif now - self._changed >= _STALL_SECONDS:
            where = self._reference.partition("://")[2].partition("/")[0]
            problem = f"no progress for {_STALL_SECONDS:g} s after {format_size(size)} from {where}"
            hint = "Check the network and the registry, and run it again"
            raise RegistryError(f"cannot pull {self._reference}: {problem}", hint)


def _bytes_below(directory: Path) -> int:
    """What all files in a directory occupy, while the engine makes and removes some."""
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                size += Path(parent, name).lstat().st_blocks * 512
    return size


def _failure(reference: str, cache: Path, log: Path) -> CtrainError:
    """The error for a pull that failed, by the last line that the engine wrote."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    reason = apptainer.last_error(text) or "the engine wrote no reason"
    if re.search(r"no space left on device|disk quota exceeded", text, re.IGNORECASE):
        hint = f"Free space in {cache}, or in APPTAINER_TMPDIR (default: /tmp), where engines unpack layers"
        return DiskFullError(f"cannot pull {reference}: {reason}", hint)
    return RegistryError(f"cannot pull {reference}: {reason}", "Check the reference, the network and your login")
