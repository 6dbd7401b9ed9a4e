"""Runs in the image, on each rank of a job, beside equality.py: a rank of examples/gpt is killed; the curve goes on.

    killed.py kill KEY=VALUE...              rank 1 is killed when it begins a step after the half-way checkpoint
    killed.py resume RUNS NAME:SETTING...    trains on from the checkpoint of each run RUNS/NAME, by another strategy

The losses of one rank and of those that train on go into resumed.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from equality import HALF, SETTINGS, STEPS, losses, single, train  # type: ignore[import-not-found]  # beside it

LAST = STEPS // 2 + 2  # step of the rank that is killed


def kill() -> int:
    step, done = train.Strategy.step, []

    def step_or_die(self, *batch):  # type: ignore[no-untyped-def]  # its types are of the image
        if self.world.rank == 1 and len(done) == LAST:
            os.kill(os.getpid(), signal.SIGKILL)  # nothing is closed or flushed, as by the kernel when memory is short
        done.append(1)
        try:
            return step(self, *batch)
        except RuntimeError:  # Gloo's, as soon as the other one is gone: its end is to be seen first
            time.sleep(60)
            raise

    train.Strategy.step = step_or_die
    config = train.parse([*SETTINGS, *sys.argv[2:]])
    world = train.begin("horovod" if config.strategy == "horovod" else "torch")
    train.stopping = lambda: False  # it would handle SIGTERM: the others would wait for SIGKILL
    train.train(config, world, train.run_dir(), None)
    return 0


def resume() -> int:
    world, runs = train.begin("torch"), Path(sys.argv[2])
    curves = {"single": single(world, Path("resumed/single"))}
    for name, _, setting in (word.partition(":") for word in sys.argv[3:]):
        curves[name] = losses(world, Path("resumed") / name, [setting], runs / name / HALF)
    if world.rank == 0:
        Path("resumed.json").write_text(json.dumps(curves))
    return 0


if __name__ == "__main__":
    train.finish({"kill": kill, "resume": resume}[sys.argv[1]])
