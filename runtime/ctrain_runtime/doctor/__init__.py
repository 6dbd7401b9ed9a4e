"""Checks of this installation that need only a reader's permissions and change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """The state of `subject`: correct (ok), questionable (warn) or wrong (fail). `hint` is the next step."""

    subject: str
    level: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""
