"""Slurm 22.05 and later, through its commands and their text output: their JSON differs between versions."""

from __future__ import annotations

from ctrain_runtime.schedulers.protocol import Scheduler
from ctrain_runtime.schedulers.slurm.scheduler import Slurm

SCHEDULER: Scheduler = Slurm()
