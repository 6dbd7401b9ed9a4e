"""Measures what one rank of examples/gpt allocates at the peak of a step, where several share the work.

    apptainer exec IMAGE python tests/samples/memory/measure_ranks.py > tests/samples/memory/measured_ranks.csv

Needs torch and DeepSpeed, and no GPU: the model is small, and computes on the CPU as one of ranks that are not there
(torch's backend "fake": collectives do nothing). Stages of a pipeline wait for each other, so all of their ranks are
there. What is counted are the bytes that torch's allocator gives out, of the rank that has most.
"""

# ruff: noqa: E402  # the paths of the examples come before the imports
from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path[:0] = [str(EXAMPLES / "gpt"), str(EXAMPLES / "common")]

import strategies
import torch
import zero
from config import Config
from example import World
from torch.testing._internal.distributed.fake_pg import FakeStore


class Case(NamedTuple):
    strategy: str
    ranks: int
    layers: int
    heads: int
    width: int
    context: int
    vocabulary: int
    micro_batch: int
    micro_batches: int = 1
    bf16: bool = True
    recompute: bool = False
    tp: int = 1
    pp: int = 1


BUCKET = 100_000  # gradients that DeepSpeed reduces at once: as small beside this model as usual beside a usual one
SMALL, WIDE = (6, 4, 256, 256, 1000), (4, 8, 512, 128, 2000)
SHARED = ("zero1", "zero2", "zero3", "fsdp")
CASES = [
    *(Case(name, 4, *WIDE, 2) for name in SHARED),
    *(Case(name, 8, *SMALL, 8) for name in SHARED),
    *(Case(name, 4, *WIDE, 2, 4) for name in SHARED),
    *(Case("tp", 2, *WIDE, 16, tp=2, bf16=bf16) for bf16 in (True, False)),
    *(Case(name, 4, *WIDE, 16, bf16=False) for name in SHARED),
    *(Case(name, 2, *WIDE, 16, recompute=True) for name in SHARED),
    Case("tp", 4, *WIDE, 16, tp=4),
    Case("pp", 4, *WIDE, 16, 8, pp=4),
    *(Case("pp", 2, *SMALL, 8, 4, pp=2, bf16=bf16) for bf16 in (False, True)),
    Case("pp", 2, *WIDE, 16, 4, pp=2, recompute=True),
    Case("3d", 2, *WIDE, 16, 8, pp=2),
    Case("3d", 4, *SMALL, 8, 4, pp=2),
    Case("3d", 8, *SMALL[:-1], 100, 8, 4, tp=2, pp=2),
    *(Case("3d", ranks, *WIDE, 16, tp=2) for ranks in (2, 4)),
    Case("3d", 2, *WIDE[:-1], 100, 16, tp=2),
    Case("3d", 4, *SMALL[:-1], 100, 8, 4, tp=2),
    Case("3d", 8, *SMALL, 8, 4, tp=4),
]  # fmt: skip  # rows, as they are read


def peak(case: Case) -> int:
    """The most bytes at once: of all that is allocated from the beginning on."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if case.pp > 1:
        torch.distributed.init_process_group("gloo")
    else:
        torch.distributed.init_process_group("fake", rank=0, world_size=case.ranks, store=FakeStore())
    batch = case.ranks // (case.tp * case.pp) * case.micro_batch * case.micro_batches
    config = Config(
        layers=case.layers, heads=case.heads, width=case.width, context=case.context, bf16=case.bf16,
        strategy=case.strategy, batch=batch, micro_batch=case.micro_batch, recompute=case.recompute,
        tp=case.tp, pp=case.pp,
    )  # fmt: skip  # rows, as they are read
    make = zero.Zero.__init__

    def with_a_small_bucket(self: zero.Zero, *args: Any) -> None:
        make(self, *args)
        self.keys["zero_optimization"]["reduce_bucket_size"] = BUCKET

    zero.Zero.__init__ = with_a_small_bucket
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        strategy = strategies.Strategy(config, World(rank, case.ranks, rank, torch.device("cpu")), case.vocabulary)
        tokens = torch.zeros(batch, case.context + 1, dtype=torch.int64)
        for step in range(2):  # the first makes the optimizer's state
            with torch.profiler.record_function(f"step {step}"):
                strategy.step(tokens, 1e-3)
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    begin = next(event.start_ns() for event in events if event.name() == "step 1")
    now = most = 0
    for event in events:
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now) if event.start_ns() > begin else most
    return most


def main() -> None:
    """Each case in a process of its own: a process joins other ranks once."""
    if len(sys.argv) > 1:
        print(peak(CASES[int(sys.argv[1])]), file=sys.stderr, flush=True)
        os._exit(0)  # groups of ranks would wait for each other
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow((*Case._fields, "bytes", "torch"))
    for number, case in enumerate(CASES):
        ends = [process.communicate()[1] for process in started(number, case.ranks if case.pp > 1 else 1)]
        words = [end.split()[-1] if end else "" for end in ends]
        most = max(map(int, words)) if all(word.isdecimal() for word in words) else ends[0][-300:]
        rows.writerow((*case, most, torch.__version__))
        sys.stdout.flush()


def started(number: int, ranks: int) -> list[subprocess.Popen[str]]:
    place = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(29500 + number),
    }
    return [
        subprocess.Popen(
            [sys.executable, __file__, str(number)],
            env={**os.environ, **place, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


if __name__ == "__main__":
    main()
