"""Waits for the ends of runs. Prints nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Optional

from ctrain_runtime.run.pick_up import refresh, require_known
from ctrain_runtime.run.record import Record
from ctrain_runtime.run.submit import Run
from ctrain_runtime.run.watch import EndLook
from ctrain_runtime.schedulers.protocol import Status

POLL_SECONDS = 0.5


def ends(runs: Sequence[Run], deadline: Optional[float] = None) -> Iterator[tuple[Run, Status, Record]]:
    """Each run once it has ended, with its concluded record; at `deadline` (time.monotonic) the rest is left out.

    Raises SchedulerError if nothing can be known of a job here.
    """
    left = {run.path: (run, EndLook(run)) for run in runs}
    while left:
        for path, (run, look) in list(left.items()):
            if not look.has_ended():
                continue
            status, conclusion = refresh(run)
            require_known(status)
            if conclusion and conclusion.record.exit:
                del left[path]
                yield run, status, conclusion.record
        if deadline is not None and time.monotonic() >= deadline:
            return
        if left:
            time.sleep(POLL_SECONDS)
