"""What a started run looks like to the one who watches it, whatever started it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Status:
    """Where a run stands. `detail` is the scheduler's own word: why it waits, or how it ended."""

    phase: Literal["waiting", "running", "ended"]
    detail: str = ""


class Handle(Protocol):
    """A started run."""

    @property
    def name(self) -> str:
        """What users call it, as in "job 41873"."""

    def status(self) -> Status:
        """Ask where it stands."""

    def finish(self) -> None:
        """Its last act is done: wait for what is left of it, if that is a matter of moments."""

    def cancel(self) -> None:
        """End it; returns before it has ended."""
