"""Checks of this installation that need only a reader's permissions and change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctrain_runtime.base.text import format_duration

_CLOCK_WARN_SECONDS = 2  # make, checkpoints and logs of several nodes sort by time
_CLOCK_FAIL_SECONDS = 300  # munge and Kerberos reject messages that are older (man munged, --ttl)


@dataclass(frozen=True)
class Finding:
    """The state of `subject`: correct (ok), questionable (warn) or wrong (fail). `hint` is the next step."""

    subject: str
    level: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""


def check_clock(other: str, skew: float) -> Finding:
    """A finding on the clock of `other`, which is `skew` seconds ahead of this machine's."""
    if abs(skew) < _CLOCK_WARN_SECONDS:
        return Finding("clock", "ok", f"agrees with {other}")
    text = f"{other} is {format_duration(abs(skew))} {'ahead' if skew > 0 else 'behind'}"
    hint = "Ask the administrators to synchronise clocks; see: chronyc tracking"
    return Finding("clock", "fail" if abs(skew) >= _CLOCK_FAIL_SECONDS else "warn", text, hint)
