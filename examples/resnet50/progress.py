"""Step by step, what all ranks have reached together."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any, Optional

import horovod.torch as hvd
import torch
from example import Metrics


class Terminated(Exception):
    """SIGTERM reached a rank, and all ranks have agreed to end after the same step."""


class Progress:
    """Sums loss and requests to stop over all ranks.

    A step's sums are read after the next step was queued, so that no rank stands still until its GPU is done.
    """

    def __init__(self, metrics: Metrics, images_per_step: int) -> None:
        self.metrics = metrics
        self.images_per_step = images_per_step
        self.losses: list[float] = []
        self.started = self.last_step = time.monotonic()
        self.stop_asked = False
        self.pending: Optional[tuple[Any, dict[str, float]]] = None
        signal.signal(signal.SIGTERM, self._ask_to_stop)

    def _ask_to_stop(self, _signal: int, _frame: Optional[FrameType]) -> None:
        self.stop_asked = True

    def start_epoch(self) -> None:
        self.losses = []
        self.started = self.last_step = time.monotonic()

    def step_done(self, loss: torch.Tensor, **facts: float) -> None:
        """Hands in this rank's loss; facts go into the step's line of metrics.jsonl."""
        stop = self._read()
        now = time.monotonic()
        facts["images_per_second"] = round(self.images_per_step / (now - self.last_step), 1)
        self.last_step = now
        sums = torch.stack([loss, loss.new_tensor(float(self.stop_asked))])
        self.pending = hvd.allreduce_async(sums, name="progress", op=hvd.Sum), facts
        if stop:
            self._read()
            raise Terminated

    def end_epoch(self) -> tuple[float, float]:
        """Mean loss, and images a second, of the epoch."""
        if self._read():
            raise Terminated
        seconds = time.monotonic() - self.started
        return sum(self.losses) / len(self.losses), len(self.losses) * self.images_per_step / seconds

    def _read(self) -> bool:
        """Takes in the sums that are on their way; true if a rank was asked to stop."""
        if self.pending is None:
            return False
        (handle, facts), self.pending = self.pending, None
        loss_sum, stops = hvd.synchronize(handle).tolist()
        self.losses.append(loss_sum / hvd.size())
        self.metrics.write(**facts, loss=self.losses[-1])
        return stops > 0
