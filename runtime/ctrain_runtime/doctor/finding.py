"""What a look has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """About `subject`: that it is as it should be (ok), that one should know something (warn), or what is wrong (fail).

    `hint` says what to do.
    """

    subject: str
    level: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""
