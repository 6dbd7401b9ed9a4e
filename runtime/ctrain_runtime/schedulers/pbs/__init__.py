"""OpenPBS and PBS Professional, 2020 and later, through the JSON output of their commands."""

from __future__ import annotations

from ctrain_runtime.schedulers.pbs.scheduler import Pbs
from ctrain_runtime.schedulers.protocol import Scheduler

SCHEDULER: Scheduler = Pbs()
