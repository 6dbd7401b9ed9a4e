"""Checks the directories that a run writes to: space, quota, and the clock of their file server."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

from ctrain_runtime.base.paths import expand_home
from ctrain_runtime.base.text import format_size
from ctrain_runtime.doctor import Finding, check_clock
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.plan.staging import staging_directory
from ctrain_runtime.run.parent_directories import of_site
from ctrain_runtime.run.pulled_image import writable_cache
from ctrain_runtime.site.select import SelectedSite

_ENGINE_TMPDIR = ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR")  # where engines unpack layers
_PROBE_BYTES = 1 << 20  # written, because quotas show only then
_LOW_BYTES = 10 * 10**9  # of checkpoints and logs, or an image
_LOW_UNPACKED_BYTES = 3 * _LOW_BYTES  # the layers of an image, what they hold, and the image


def check_directories(selected: SelectedSite) -> Iterator[Finding]:
    """Whether there is space for runs and images, in the home and in TMPDIR. Writes 1 MB to each; no trace is left."""
    site = selected.site
    devices: set[int] = set()
    created: tuple[tuple[str, Callable[[], Path], str], ...] = (  # where they are missing, by ctrain
        ("runs", lambda: of_site(site), "Choose another directory: --runs DIR, or `runs` in a site file"),
        ("image_cache", lambda: writable_cache(selected), "Remove images of it, or set `image_cache` in a site file"),
    )
    for subject, find, hint in created:
        try:
            path = find()
        except CtrainError as error:
            yield Finding(subject, "fail", error.message, error.hint)
        else:
            existing = next(filter(os.path.isdir, (path, *path.parents)))
            yield from _check(subject, existing, hint, devices, low=_LOW_BYTES)
    yield from _check("home", expand_home("~"), "Free space: du -xh ~ | sort -h | tail", devices)
    staging = Path(staging_directory(site) or ".")
    if site.staging and staging.is_dir():
        yield next(_check("staging", staging, "Remove files that no job uses any more", devices, low=_LOW_BYTES))
    elif site.staging:
        hint = "Run ctrain doctor in a job, too: nodes without it read the image where it is"
        yield Finding("staging", "warn", f"{staging}: not found on this machine", hint)
    unpacked = Path(next(filter(None, map(os.environ.get, _ENGINE_TMPDIR)), tempfile.gettempdir()))
    hint = f"To pull images of docker://, set {_ENGINE_TMPDIR[0]} to a directory with more space"
    yield next(_check("engine tmp", unpacked, hint, devices, low=_LOW_UNPACKED_BYTES))
    yield _check_tmpdir(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108  # the default of programs


def _check(subject: str, directory: Path, hint: str, devices: set[int], *, low: int = 0) -> Iterator[Finding]:
    """Its space, then the clock of its file server, unless it is on one of `devices`, to which its own is added."""
    try:
        skew = _probe(directory)
    except OSError as error:
        yield Finding(subject, "fail", f"{directory}: cannot write 1 MB: {error.strerror}", hint)
        return
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    is_low = free < low
    text = f"{directory}: {format_size(free)} free"
    yield Finding(subject, "warn" if is_low else "ok", text, hint if is_low else "")
    device = directory.stat().st_dev
    if device not in devices:
        devices.add(device)
        yield check_clock(f"the file server of {directory}", skew)


def _probe(directory: Path) -> float:
    """Write a file that has no name; the seconds by which its server's clock is ahead. Raises OSError."""
    with tempfile.TemporaryFile(dir=directory) as file:
        before = time.time()
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        written, after = os.fstat(file.fileno()).st_mtime, time.time()
    return written - min(max(written, before), after)


def _check_tmpdir(directory: str) -> Finding:
    """As the scripts of a run choose it on each node."""
    problem = ""
    if not directory.startswith("/"):
        problem = "not an absolute path"
    elif not os.access(directory, os.W_OK | os.X_OK):
        problem = "cannot be written to"
    elif any(character in directory for character in ':,\\"'):
        problem = "engines read ':' and ',' as separators"
    if problem:
        return Finding("TMPDIR", "warn", f"{directory}: {problem}; runs use /tmp instead", "Run: unset TMPDIR")
    return Finding("TMPDIR", "ok", directory)
