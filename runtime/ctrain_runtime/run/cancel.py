"""Cancels a run and waits for its end, without a terminal and without signals."""

from __future__ import annotations

import time
from typing import Callable, cast

from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.run.conclude import Conclusion, conclude
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.pick_up import refresh, require_known
from ctrain_runtime.run.submit import Run
from ctrain_runtime.run.watch import RunObserver, watch


class _Unseen:
    """A RunObserver that shows nothing."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None


class _Asked(Interrupts):
    """As if the user had asked to cancel; no signal has a handler, so any thread may do it."""

    def __init__(self) -> None:
        super().__init__()
        self.cancel = True

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def cancel(run: Run) -> Conclusion:
    """Cancel a run and wait for its end, for a minute at most; of one that has ended, how. Raises SchedulerError."""
    status, conclusion = refresh(run)
    require_known(status)
    if conclusion:
        return conclusion
    last = watch(run, cast("RunObserver", _Unseen()), _Asked())
    if not last.job_is_over:
        hint = f"Retry with: ctrain cancel {run.path}"
        raise SchedulerError(f"cannot cancel {run.job_name}; it may still be running", hint)
    return conclude(run, last.status)
