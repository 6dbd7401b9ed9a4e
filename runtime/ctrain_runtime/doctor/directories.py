"""Checks the directories that a run writes to: space, quota, and the clock of their file server."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ctrain_runtime.doctor import Finding, check_clock
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.paths import expand_home
from ctrain_runtime.run.prepare import runs_directory
from ctrain_runtime.site import Site
from ctrain_runtime.text import format_size

_PROBE_BYTES = 1 << 20  # written, because quotas show only then
_LOW_BYTES = 10 * 10**9  # of checkpoints and logs


def check_directories(site: Site) -> Iterator[Finding]:
    """Whether there is space for runs, in the home and in TMPDIR. Writes 1 MB to each, which leaves no trace."""
    try:
        runs = runs_directory(site)
    except CtrainError as error:
        yield Finding("runs", "fail", error.message, error.hint)
    else:
        runs = next(filter(os.path.isdir, (runs, *runs.parents)))  # ctrain creates the missing ones
        yield from _check(
            "runs", runs, "Choose another directory: --runs DIR, or `runs` in a site file", low=_LOW_BYTES
        )
    yield from _check("home", expand_home("~"), "Free space: du -xh ~ | sort -h | tail")
    yield _check_tmpdir(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108  # the default of programs


def _check(subject: str, directory: Path, hint: str, *, low: int = 0) -> Iterator[Finding]:
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
