"""Leases: which images of a store jobs still need, whether they wait or run.

    STORE/in-use/FILE@RUN    an empty file; the time of its change, in the future, is when the lease ends

It is the one folder of a store that all its readers may write to (sticky: each removes but his own). All that is
believed of it is that `ctrain store gc` leaves FILE where it is until then. It may be missing, and a store may be
mounted read-only where jobs are started: then only the grace period of retired versions keeps a job's image.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime import users

LEASES = "in-use"
MAX_LEASE_SECONDS = 30 * 86400  # seconds: for a job that waits, or has no time limit


@dataclass(frozen=True)
class Lease:
    """An image's file name, until when it is needed (seconds since 1970), and by whom."""

    image: str
    until: float
    owner: str


def writable_lease_dir(image: Path) -> str:
    """Where a lease of an image can be left; "" if nowhere."""
    path = image.parent / LEASES
    return str(path) if path.is_dir() and os.access(path, os.W_OK | os.X_OK) else ""


def lease_path(leases: str, image: str, run_directory: Path) -> str:
    """The path of a run's lease in the folder `leases`; "" if there is none."""
    run = hashlib.sha256(str(run_directory).encode(errors="surrogateescape")).hexdigest()[:12]
    return f"{leases}/{Path(image).name}@{run}" if leases else ""


def acquire(path: str) -> None:
    """Leave a lease for a job that is about to be submitted; its script gives it the job's own time limit."""
    if path:
        with contextlib.suppress(OSError):  # a full disk of the store is no reason not to run
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644))
            until = time.time() + MAX_LEASE_SECONDS
            os.utime(path, (until, until), follow_symlinks=False)


def release(path: str) -> None:
    """The job has ended."""
    if path:
        with contextlib.suppress(OSError):  # then it ends by itself
            Path(path).unlink(missing_ok=True)


def active(root: Path, now: float) -> dict[str, Lease]:
    """The images of a store that are needed at the time `now`, by file name; of several leases the last to end."""
    found = (_read(path) for path in (root / LEASES).glob("*@*"))
    lasting = sorted((lease for lease in found if lease.until > now), key=lambda lease: lease.until)
    return {lease.image: lease for lease in lasting}


def sweep(root: Path, now: float) -> None:
    """Remove the leases that have ended."""
    for path in (root / LEASES).glob("*@*"):
        if _read(path).until <= now:
            with contextlib.suppress(OSError):  # only root, the folder's owner and the lease's may do that
                path.unlink()


def _read(path: Path) -> Lease:
    image = path.name.rpartition("@")[0]
    try:
        found = path.lstat()
    except OSError:  # it was released since the folder was read
        return Lease(image, 0, "")
    return Lease(image, found.st_mtime, users.user_name(found.st_uid))
