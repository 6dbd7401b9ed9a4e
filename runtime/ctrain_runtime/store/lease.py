"""Leases: images of a store that queued or running jobs need.

    STORE/in-use/FILE@RUN    its modification time, in the future, is the expiry of the lease; it names the run

It is the only directory of a store that all readers may write to (sticky: they can remove only their own files). A
lease has one effect: `ctrain store gc` keeps FILE until it expires. The directory may be missing, or the store mounted
read-only on login nodes: then only the grace period of retired versions protects a job's image.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.base.text import user_name
from ctrain_runtime.errors import StoreError

LEASES = "in-use"
MAX_LEASE_SECONDS = 30 * 86400  # of a queued job, or one without a time limit
LONGEST_DAYS = 90.0  # days that a lease counts since its last change, whatever expiry it has: anybody can make one
_MAX_RUN_BYTES = 4096


@dataclass(frozen=True)
class Lease:
    """A lease of an image's file until `until` (seconds since 1970) by the user `owner`. `run`: HOST:DIRECTORY of the
    run, as its owner says; "" if unknown."""

    image: str
    until: float
    owner: str
    run: str = ""

    def __str__(self) -> str:
        until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.until))
        return f"a job of {self.owner}{f' ({self.run})' if self.run else ''}, until {until} at the latest"


def writable_lease_dir(image: Path) -> str:
    """The directory for leases of `image`; "" if there is none or it is not writable."""
    path = image.parent / LEASES
    return str(path) if path.is_dir() and os.access(path, os.W_OK | os.X_OK) else ""


def lease_path(directory: str, image: str, run_directory: Path) -> str:
    """The path of a run's lease in `directory`; an empty `directory` gives an empty path."""
    run = hashlib.sha256(str(run_directory).encode(errors="surrogateescape")).hexdigest()[:12]
    return f"{directory}/{Path(image).name}@{run}" if directory else ""


def acquire(path: str, run_directory: str) -> None:
    """Create the lease of a job before its submission; its script then sets the job's time limit."""
    if path:
        with contextlib.suppress(OSError):  # a lease is best effort: a full disk must not prevent the run
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
            try:
                os.write(descriptor, f"{socket.gethostname()}:{run_directory}".encode(errors="surrogateescape"))
            finally:
                os.close(descriptor)
                until = time.time() + MAX_LEASE_SECONDS
                os.utime(path, (until, until), follow_symlinks=False)


def release(path: str) -> None:
    """Remove the lease of a job that has ended."""
    if path:
        with contextlib.suppress(OSError):  # then it expires
            Path(path).unlink(missing_ok=True)


def unexpired(root: Path, now: float) -> list[Lease]:
    """The leases that have not expired at time `now`; the one that expires last comes last."""
    leases = (lease for lease in (_read(path) for path in _paths(root)) if lease.until > now)
    return sorted(leases, key=lambda lease: lease.until)


def of_image(image: Path, now: float) -> list[Lease]:
    """The unexpired leases on the file of an image of a store."""
    return [one for one in unexpired(image.parent, now) if one.image == image.name]


def active(root: Path, now: float) -> dict[str, Lease]:
    """The unexpired leases at time `now` by image file name; of several, the one that expires last."""
    return {lease.image: lease for lease in unexpired(root, now)}


def sweep(root: Path, now: float) -> None:
    """Remove leases that have expired by themselves: no bound ends the lease of a long job for good."""
    for path in _paths(root):
        if _read(path, math.inf).until <= now:
            with contextlib.suppress(OSError):  # only root and the owners of the directory and the lease may remove it
                path.unlink()


def _paths(root: Path) -> list[Path]:
    """The leases of a store. Raises StoreError: a directory that cannot be listed must not look empty."""
    try:
        return [path for path in (root / LEASES).iterdir() if path.match("*@*")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot list {root / LEASES}: {error.strerror}", "Ask the store's owner") from error


def _read(path: Path, longest: float = LONGEST_DAYS) -> Lease:
    image = path.name.rpartition("@")[0]
    try:
        status = path.lstat()
    except OSError:  # released while the directory was read
        return Lease(image, 0, "")
    until = min(status.st_mtime, status.st_ctime + longest * 86400)
    return Lease(image, until, user_name(status.st_uid), _read_run(path))


def _read_run(path: Path) -> str:
    """What a lease says of its run. Any user may have written it, and put anything in its place."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            text = os.read(descriptor, _MAX_RUN_BYTES).decode(errors="replace")
        finally:
            os.close(descriptor)
        return "".join(filter(str.isprintable, text))
    return ""
