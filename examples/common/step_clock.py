"""How long the steps of a training take, how much of that is not computation, and the memory."""

from __future__ import annotations

import resource
import time


class StepClock:
    def __init__(self) -> None:
        self.began = self.computing = time.monotonic()

    def start_computing(self) -> None:
        """The step has its data."""
        self.computing = time.monotonic()

    def end_step(self, work: int) -> tuple[float, dict[str, float]]:
        """Of what the step processed, how much per second; and for metrics.jsonl the seconds since the step before,
        those of them outside the computation (data, logging, checkpoint), and the most bytes of the node's memory that
        the rank has had so far."""
        began, self.began = self.began, time.monotonic()
        seconds, outside = self.began - began, self.computing - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # from KiB
        times = {"seconds": round(seconds, 6), "seconds_outside_compute": round(outside, 6), "host_memory": memory}
        return round(work / seconds, 1), times
