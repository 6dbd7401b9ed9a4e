"""Runs in the image, on each rank of a job: a program of the examples, whose rank 1 gets SIGTERM in a step or epoch.

stopped.py /opt/ctrain/examples/NAME/PROGRAM.py STEP OPTION...
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
from pathlib import Path

path, step = Path(sys.argv.pop(1)), int(sys.argv.pop(1))
sys.path.insert(0, str(path.parent))
program = importlib.import_module(path.stem)
from ctrain_program import rank  # type: ignore[import-not-found]  # noqa: E402  # in the image, on the program's path

calls, asked = itertools.count(), program.stopping  # the first call is before the first step


def stopping() -> bool:
    if rank() == 1 and next(calls) == step:
        os.kill(os.getpid(), signal.SIGTERM)
    return bool(asked())


program.stopping = stopping

if __name__ == "__main__":
    program.finish(program.main)
