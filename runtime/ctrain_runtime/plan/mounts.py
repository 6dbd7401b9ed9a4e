"""The host paths that a run sees, and where it sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import ConfigError, DataError, UsageError
from ctrain_runtime.job import Job
from ctrain_runtime.plan.environment import RESUME
from ctrain_runtime.plan.model import Inputs, Mount
from ctrain_runtime.plan.options import Options
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import expand

SQUASHFS = (".sqfs", ".sqsh", ".squashfs")  # how the names of such images end
MAGIC = b"hsqs"  # how they begin (the Linux kernel's squashfs_fs.h)


def make_mounts(job: Job, site: Site, options: Options, inputs: Inputs, run_directory: Path) -> tuple[Mount, ...]:
    """The mounts of a run, in order. Raises UsageError, or DataError if the site lacks the job's data set.

    The run directory and the user's directory keep their paths inside, so that paths in arguments hold. Older engines
    mount in this order: the run directory may lie in the data set's.
    """
    mounts = [*site_mounts(site), *(parse_mount(text) for text in options.mounts)]
    if site.cache:
        cache = expand(site.cache, f"site {site.name}: cache")
        mounts.append(Mount(cache, cache, read_only=False))
    if job.directory:
        source = run_directory / run_files.CODE if inputs.code else job.directory
        mounts.append(Mount(str(source), str(job.directory), read_only=False))
    if inputs.code:
        stays = (f"{inputs.code.directory}/{name}" for name in inputs.code.live)
        mounts += [Mount(path, path, read_only=False) for path in stays]
    data = data_mount(job, site, options)
    if data:
        if data.source != data.target and Path(data.target) in (run_directory, *run_directory.parents):
            problem = f"the data set would be mounted at {data.target}, over the run directory {run_directory}"
            raise UsageError(problem, "Choose another parent of runs: --runs DIR")
        mounts.append(data)
    mounts.append(Mount(str(run_directory), str(run_directory), read_only=False))
    if inputs.resume:
        mounts.append(Mount(inputs.resume, RESUME, read_only=True))
    return tuple(mounts)


def data_mount(job: Job, site: Site, options: Options) -> Optional[Mount]:
    """The mount of the data set, a directory or a SquashFS image; None for a job without one."""
    data = options.data or (site.datasets.get(job.data.dataset, "") if job.data else "")
    if job.data and not data:
        raise DataError(
            f"site {site.name} has no data set {job.data.dataset!r}, required by job {job.name}",
            "Pass --data DIR, or add it to `datasets` in the site file",
        )
    if not data:
        return None
    return Mount(data, job.data.mount if job.data else "/data", read_only=True, is_image=data.endswith(SQUASHFS))


def data_problem(mount: Mount) -> Optional[DataError]:
    """Why a data set that exists cannot be mounted; None if it can."""
    path = Path(mount.source)
    try:
        if path.is_dir() and not mount.is_image:
            return None
        with path.open("rb") as file:
            is_squashfs = file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        return DataError(f"cannot read the data set {path}: {error.strerror}", "Check its permissions")
    if mount.is_image and is_squashfs:
        return None
    hint = f"Data sets are directories, or SquashFS images whose names end in {' or '.join(SQUASHFS)}"
    return DataError(f"cannot mount the data set {path}: not a directory, and not such an image", hint)


def site_mounts(site: Site) -> list[Mount]:
    """The mounts of a site's file. Raises ConfigError."""
    try:
        return [parse_mount(text, "mounts:") for text in site.mounts]
    except UsageError as error:
        raise ConfigError(f"site {site.name}: {error.message}", "As in: mounts: [/scratch:/scratch:ro]") from error


def parse_mount(text: str, where: str = "--mount") -> Mount:
    """The mount SRC, SRC:DST or SRC:DST:ro|rw, as for engines. SRC alone keeps its path inside. Raises UsageError."""
    source, *rest = text.split(":")
    mode = rest.pop() if len(rest) == 2 else "rw"
    if not source or len(rest) > 1 or mode not in ("ro", "rw"):
        raise UsageError(f"{where} {text!r} is not SRC[:DST[:ro]]", "As in: --mount /scratch/me:/scratch:ro")
    return Mount(source, rest[0] if rest else source, mode == "ro")
