"""Shells: one rank of an interactive plan on the user's terminal. They are no runs: without a record, not listed."""

from __future__ import annotations

from ctrain_runtime import schedulers
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.run import directory
from ctrain_runtime.store import lease


def open_shell(launch: Launch) -> tuple[int, bool]:
    """Run the shell to its end: its exit code, and whether its directory is gone. Raises CtrainError.

    The directory stays if something was written to it, such as checkpoints.
    """
    scheduler = schedulers.get(launch.plan.scheduler)
    directory.create(launch)
    try:
        lease.acquire(launch.plan.image.lease, launch.plan.run_directory)
        code = scheduler.interact(launch)
    finally:
        lease.release(launch.plan.image.lease)
        is_gone = directory.remove_shell(launch)
    return code, is_gone
