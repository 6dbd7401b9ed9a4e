"""What a build tells while it runs; the command line shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Protocol


class Step(Protocol):
    """A step that has begun; one that fails does not end. `size` is in bytes."""

    def end(self, outcome: str, size: Optional[int] = None) -> None: ...


class Progress(Protocol):
    """Receives the steps of a build.

    `begin` may be called in several threads; `expected` is what the step took before, in seconds. `done` is a step
    of which nothing is left to do. `tick` is called several times a second; what it raises ends the build.
    """

    def begin(self, kind: str, name: str, log: Path, expected: Optional[float] = None) -> Step: ...
    def done(self, kind: str, name: str, outcome: str, size: Optional[int] = None) -> None: ...
    def tick(self) -> None: ...
    def note(self, text: str) -> None: ...
