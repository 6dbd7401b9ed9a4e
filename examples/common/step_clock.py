"""How long the steps of a training take, how much of that is not computation, and the memory."""

from __future__ import annotations

import resource
import time

LINES = 100  # with the times of all ranks, about, in a long training; of a shorter one, each tenth


class StepClock:
    def __init__(self) -> None:
        self.began = self.computing = time.monotonic()
        self.sum, self.count = 0.0, 0  # of the steps since the last line with the times of all ranks

    def start_computing(self) -> None:
        """The step has its data."""
        self.computing = time.monotonic()

    def end_step(self, work: int) -> tuple[float, dict[str, float]]:
        """Of what the step processed, how much per second; and for metrics.jsonl the seconds since the step before,
        those of them outside the computation (data, logging, checkpoint), and the most bytes of the node's memory that
        the rank has had so far."""
        began, self.began = self.began, time.monotonic()
        seconds, outside = self.began - began, self.computing - began
        self.sum, self.count = self.sum + seconds, self.count + 1
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # from KiB
        times = {"seconds": round(seconds, 6), "seconds_outside_compute": round(outside, 6), "host_memory": memory}
        return round(work / seconds, 1), times

    def shares(self, step: int, steps: int, rank: int, ranks: int) -> list[float]:
        """The mean seconds of this rank's last steps, at its place among those of all: their sum over the ranks is the
        `seconds_by_rank` of metrics.jsonl. Empty at steps that do not tell it, and for a rank alone."""
        if ranks == 1 or step % max(10, steps // LINES):
            return []
        mean, self.sum, self.count = round(self.sum / self.count, 6), 0.0, 0
        return [mean if each == rank else 0.0 for each in range(ranks)]
