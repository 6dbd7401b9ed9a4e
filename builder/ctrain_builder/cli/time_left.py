"""How long a build has run and will still run, by what its steps are expected to take."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ctrain_builder.progress import StepName
from ctrain_runtime.base.text import format_duration

_ENOUGH = 5.0  # seconds of steps that have ended, from which on they tell how fast this machine is


class TimeLeft:
    """Until `expect` has told what the steps take, it knows only how long the build has run.

    Steps that have ended tell how fast this machine is. Tests run side by side: together they are one step.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._expected: Mapping[StepName, float] = {}
        self._running: dict[StepName, float] = {}  # when it began
        self._took: dict[StepName, float] = {}

    def expect(self, steps: Mapping[StepName, float]) -> None:
        self._expected = steps

    def begin(self, step: StepName) -> None:
        self._running.setdefault(step, time.monotonic())

    def end(self, step: StepName) -> None:
        if step.kind != "test":
            self._took[step] = time.monotonic() - self._running.pop(step)

    def describe(self) -> str:
        """As in "2 min 5 s elapsed, about 3 min 20 s left"."""
        now = time.monotonic()
        elapsed = f"{format_duration(now - self._started)} elapsed"
        if not self._expected:
            return elapsed
        pace = self._pace()
        due = {step: seconds * pace for step, seconds in self._expected.items() if step not in self._took}
        left = {step: seconds - (now - self._running.get(step, now)) for step, seconds in due.items()}
        how = "at least" if any(seconds < 0 for seconds in left.values()) else "about"
        return f"{elapsed}, {how} {format_duration(sum(max(0.0, seconds) for seconds in left.values()))} left"

    def _pace(self) -> float:
        """How many times as long as expected the steps took that have ended."""
        ended = {step: took for step, took in self._took.items() if step in self._expected}
        expected = sum(self._expected[step] for step in ended)
        return sum(ended.values()) / expected if expected >= _ENOUGH else 1.0
