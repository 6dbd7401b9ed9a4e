"""What a build tells while it runs; the command line shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Optional, Protocol


class StepName(NamedTuple):
    """What a step is called; the tests of an image, which run side by side, are one step without a name."""

    kind: str
    name: str = ""


class Step(Protocol):
    """A step that has begun; one that fails does not end. `size` is in bytes."""

    def end(self, outcome: str, size: Optional[int] = None) -> None: ...


class Progress(Protocol):
    """Receives the steps of a build.

    `begin` may be called in several threads; `expected` is what the step took before, in seconds. `done` is a step
    of which nothing is left to do. `tick` is called several times a second; what it raises ends the build.
    `expect` tells how many seconds all steps to come take, and on what that rests.
    """

    def expect(self, steps: Mapping[StepName, float], basis: str) -> None: ...
    def begin(self, kind: str, name: str, log: Path, expected: Optional[float] = None) -> Step: ...
    def done(self, kind: str, name: str, outcome: str, size: Optional[int] = None) -> None: ...
    def tick(self) -> None: ...
    def note(self, text: str) -> None: ...
