"""Runs in the image, on each rank of a job: examples/finetune, as if the last rank had got a signal in a step.

stopped.py STEP OPTION...
"""

from __future__ import annotations

import itertools
import sys

sys.path.insert(0, "/opt/ctrain/examples/finetune")
import train  # type: ignore[import-not-found]  # it is in the image
from ctrain_program import rank  # type: ignore[import-not-found]  # in the image

calls, last = itertools.count(), int(sys.argv.pop(1))  # the first call is before the first step
train.stopping = lambda: rank() == 1 and next(calls) >= last

if __name__ == "__main__":
    train.finish(train.main)
