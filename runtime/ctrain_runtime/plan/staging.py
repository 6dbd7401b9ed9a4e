"""What is first copied to the nodes' own disks, and why. Pure; payload/relay.py makes the copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from ctrain_runtime.base.text import format_duration, format_size
from ctrain_runtime.errors import ConfigError, UsageError
from ctrain_runtime.plan.model import DataCopy, Mount, PlannedImage, Staging
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import expand

# The cost model makes copies look dear and the shared file system fast: by itself, ctrain copies only where it surely
# pays. What is measured, and how, is in benchmarks/README.md.
LINK_RATE = 0.1e9  # bytes/s between two nodes: 1 Gb Ethernet, to which host names may lead
HOP_BYTES = 1 << 18  # that a node receives, at most, before it sends them on: a chunk of relay.py
START_SECONDS = 2.0  # of the step that copies; measured on 2 nodes: 0.3 s
SHARED_RATE = 2e9  # bytes/s of one file of the shared file system, for all nodes together: an assumption
USED = 0.35  # part of an image that `import torch` reads; measured: 203 of 571 MB


def copy_seconds(size: int, nodes: int, rate: float = LINK_RATE) -> float:
    """The seconds to copy `size` bytes to the disks of all nodes: each byte crosses each link once, all at a time."""
    return START_SECONDS + (size + (nodes - 1) * HOP_BYTES) / rate


def shared_seconds(size: float, nodes: int, rate: float = SHARED_RATE) -> float:
    """The seconds in which all nodes read `size` bytes of the shared file system."""
    return nodes * size / rate


def staging_directory(site: Site) -> str:
    """The site's directory on each node's own disk, "" if it names none. Raises ConfigError."""
    directory = expand(site.staging, f"site {site.name}: staging") if site.staging else ""
    if directory and not directory.startswith("/"):
        raise ConfigError(f"site {site.name}: staging must be an absolute path, not {directory!r}")
    return directory


def plan_data_copy(mount: Optional[Mount], site: Site, digest_and_size: Callable[[Mount], tuple[str, int]]) -> DataCopy:
    """The copy of a data set that each node gets before the ranks start; `digest_and_size` may have to read all of it.
    Raises UsageError for what cannot be copied, ConfigError for a wrong directory."""
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
    return DataCopy(mount, *digest_and_size(mount), directory)


def plan_staging(mode: str, site: Site, image: PlannedImage, nodes: int, *, interactive: bool) -> Staging:
    """What --stage (`mode`, "": auto) comes to. A shell waits for no copy.

    Raises UsageError for a copy that is impossible, ConfigError for a directory that is not absolute.
    """
    directory = staging_directory(site)
    if mode == "never":
        return Staging(reason="off: --stage never")
    if not directory or not image.digest:
        problem = f"site {site.name} names no directory on the nodes' own disks" if image.digest else "it has no digest"
        if mode == "always":
            raise UsageError(f"cannot copy the image to nodes: {problem}", "Set `staging` in a site file of your own")
        return Staging(reason=f"off: {problem}")
    used = USED * image.size
    copy, shared = copy_seconds(image.size, nodes), shared_seconds(used, nodes)
    copies = not interactive and (mode == "always" or copy < shared)
    action = f"copied to {directory} on each node" if copies else f"only where {directory} has a copy already"
    estimate = f"about {format_duration(copy)}; to read {nodes} x {format_size(int(used))} of the shared image, about"
    return Staging(directory, copies, f"{action} (a copy takes {estimate} {format_duration(shared)})")
