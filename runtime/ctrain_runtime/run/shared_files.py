"""Files of a run as other hosts have left them. Clients of NFS and the like remember sizes of files, and that a name is
missing, for up to a minute, which makes success look like failure."""

from __future__ import annotations

import contextlib
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.file_systems import mount_of
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run import events, ranks
from ctrain_runtime.run.events import Event

SYNC_SECONDS = 5.0  # for a file system without such caches to show the last files of an ended job
CACHE_SECONDS = 65.0  # for others: as long as clients remember (man nfs: acregmax, acdirmax), and a margin
POLL_SECONDS = 0.2
TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class Evidence:
    """What the scripts of an ended job have written. `complete`: nothing is missing that they write unless they are
    killed."""

    job: list[Event]
    nodes: list[Event]
    complete: bool


def create(run: Path, plan: LaunchPlan) -> None:
    """Create the files of events: a name that was never missing is not remembered so. Raises OSError."""
    (run / run_files.EVENTS).touch()
    for node in range(plan.size.nodes):
        (run / run_files.NODES / f"{node}.jsonl").touch()


def has_caches(run: Path) -> bool:
    """Whether what other hosts have written to a run directory may not be visible here yet."""
    return mount_of(run).has_caches


def renew(paths: Iterable[Path]) -> None:
    """Make this host ask for the sizes of files anew.

    They come with the answer to a change, be it to the same mode. It does not refresh that a name is missing: before
    that is remembered, follow.Tail looks at listings.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            path.chmod(stat.S_IMODE(path.stat().st_mode))


def last_lines(path: Path) -> list[str]:
    """The lines at the end of a file, which alone is read; none if it cannot be."""
    if has_caches(path.parent):
        renew((path,))
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def read_evidence(run: Path, plan: LaunchPlan, *, wait: bool) -> Evidence:
    """What the scripts of an ended job have written. With `wait` the job has ended by itself, so what is missing may
    only not be visible yet: then it is waited for, as long as its file system may hide it."""
    begun, caches = time.monotonic(), has_caches(run)
    while True:
        job, nodes = events.read_job_events(run), events.read_node_events(run)
        seen = Evidence(job, nodes, _is_complete(plan, job, nodes))
        waited = time.monotonic() - begun
        if seen.complete or waited >= (_patience(seen, caches=caches) if wait else 0):
            return seen
        if caches:
            renew((run / run_files.EVENTS, *events.node_files(run)))
        time.sleep(POLL_SECONDS)


def _is_complete(plan: LaunchPlan, job: list[Event], nodes: list[Event]) -> bool:
    code, all_ranks = events.end_code(job), ranks.from_events(nodes)
    if code == 0:
        return ranks.started(all_ranks) == plan.recorded_ranks
    return code is not None and bool(all_ranks) and all(rank.exit_code is not None for rank in all_ranks)


def _patience(seen: Evidence, *, caches: bool) -> float:
    """Seconds to wait for what is missing. That of a job which has failed by its own word may never have been written:
    a rank was killed with its wrapper, or none has started. One look after a refresh is enough for it."""
    code = events.end_code(seen.job)
    if code:
        return 2 * POLL_SECONDS if caches else 0
    if caches:
        return CACHE_SECONDS
    return SYNC_SECONDS if code is None else 0
