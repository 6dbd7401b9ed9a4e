"""Calls beside the caller's work (ctrain_runtime.base.background), which a refused request leaves behind."""

from __future__ import annotations

import threading

from ctrain_runtime.base import background

PATIENCE_SECONDS = 120


def wait_for_calls() -> None:
    """Return once all have ended."""
    for thread in threading.enumerate():
        if thread.name == background.NAME:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
