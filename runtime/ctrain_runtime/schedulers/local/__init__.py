"""This machine alone: a run is a group of processes that outlives the ctrain that started it."""

from __future__ import annotations

from ctrain_runtime.schedulers.local.scheduler import Local

SCHEDULER = Local()
