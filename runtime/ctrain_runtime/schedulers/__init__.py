"""Schedulers: they turn a launch plan into scripts and commands, and parse the answers. No policy here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ctrain_runtime.errors import SiteError

if TYPE_CHECKING:
    from ctrain_runtime.schedulers.protocol import Scheduler

# The package of each scheduler has SCHEDULER; it is imported when a site names it.
MODULES = {name: f"ctrain_runtime.schedulers.{name}" for name in ("slurm", "pbs", "local")}


def get(name: str) -> Scheduler:
    """The scheduler that a site names. Raises SiteError."""
    if name not in MODULES:
        raise SiteError(f"unknown scheduler {name!r}", f"Available: {', '.join(MODULES)}")
    scheduler: Scheduler = importlib.import_module(MODULES[name]).SCHEDULER
    return scheduler
