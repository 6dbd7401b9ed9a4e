"""CTRAIN_LONG=1: what repeats itself does so often enough to meet what is rare; CI does it at night."""

from __future__ import annotations

import os

LONG = os.environ.get("CTRAIN_LONG", "") not in ("", "0")


def often(times: int, short: int) -> int:
    """`times` in the long mode, else `short`."""
    return times if LONG else short
