"""What identifies a data set of which each node gets a copy."""

from __future__ import annotations

from pathlib import Path

from ctrain_runtime.errors import DataError
from ctrain_runtime.images.foreign import cached_digest
from ctrain_runtime.images.pull import Report
from ctrain_runtime.plan.model import Mount
from ctrain_runtime.plan.mounts import data_problem


def digest_and_size(mount: Mount, report: Report) -> tuple[str, int]:
    """Digest and size of the image of a data set, which is read whole unless they are known. Raises DataError."""
    if wrong := data_problem(mount):
        raise wrong
    path = Path(mount.source)
    try:
        return cached_digest(path, report), path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "Check its permissions") from error
