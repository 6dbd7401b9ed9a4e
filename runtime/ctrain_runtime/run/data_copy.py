"""The copies of a run's data set on the nodes' own disks, on request."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from ctrain_runtime.errors import DataError, UsageError
from ctrain_runtime.images.foreign import cached_digest
from ctrain_runtime.images.pull import Report
from ctrain_runtime.plan.model import DataCopy, Mount
from ctrain_runtime.plan.mounts import data_problem
from ctrain_runtime.plan.staging import staging_directory
from ctrain_runtime.site.model import Site


def request_copy(mount: Optional[Mount], site: Site, report: Report) -> DataCopy:
    """The copy of a data set that each node gets before the ranks start. Reads the whole file, unless its digest is
    known.

    Raises UsageError, DataError.
    """
    if not mount:
        raise UsageError("--stage-data: the run has no data set", "Pass --data FILE.sqfs")
    if not mount.is_image:
        hint = f"Make one, once, with: mksquashfs {mount.source} FILE.sqfs; then pass --data FILE.sqfs"
        problem = f"--stage-data copies one file, a SquashFS image, not the directory {mount.source}"
        raise UsageError(problem, hint)
    directory = staging_directory(site)
    if not directory:
        problem = f"--stage-data: site {site.name} names no directory on the nodes' own disks"
        raise UsageError(problem, "Set `staging` in a site file of your own")
    if wrong := data_problem(mount):
        raise wrong
    path = Path(mount.source)
    try:
        return DataCopy(mount, cached_digest(path, report), path.stat().st_size, directory)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "Check its permissions") from error
