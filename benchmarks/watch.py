"""What a heartbeat and a line of metrics cost in each step of a training, beside the same steps without them; and how
often the watches of many runs ask the scheduler.

    python benchmarks/watch.py [--steps N] [--milliseconds N] [--watched-runs N] [--directory DIR] [--json]

Steps with and without take turns, so that a busy moment of the machine hits both. How to read the result:
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

sys.path.insert(1, str(Path(__file__).parent))
import scale

from ctrain_runtime.payload import ctrain_program
from ctrain_runtime.run import watch
from ctrain_runtime.run.pick_up import pick_up

LIMIT = 0.01  # of a step
WARM_UP = 20  # steps of each that are not counted
WATCHED_MINUTES = 30
ASKED = ("scontrol", "squeue", "sacct", "sinfo")  # commands that ask Slurm's controller or its accounting


class Step(NamedTuple):
    """Seconds of a step, and those of them in calls of ctrain's."""

    all: float
    calls: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures what heartbeats and metrics cost a training.")
    parser.add_argument("--steps", type=int, default=2000, metavar="N", help="steps of each kind (default: 2000)")
    parser.add_argument("--milliseconds", type=float, default=5, metavar="N", help="computation in a step (default: 5)")
    parser.add_argument("--watched-runs", type=int, default=200, metavar="N", help="at the same time (default: 200)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="for the files (default: that of temporary ones)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    if min(args.steps, args.watched_runs) < 1 or args.milliseconds <= 0:
        parser.error("--steps, --milliseconds and --watched-runs must be positive")
    try:
        directory = tempfile.TemporaryDirectory(dir=args.directory)
    except OSError as error:
        parser.error(f"--directory {args.directory}: {error.strerror}")
    with directory as run:
        os.environ.update(CTRAIN_RUN_DIR=run, CTRAIN_HEARTBEAT=f"{run}/beat", RANK="0")
        plain, watched = measure(args.steps, calibrate(args.milliseconds / 1000))
        lines = len(Path(run, "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    result = {**compare(plain, watched), **controller_load(args.watched_runs)}
    print(table(result))
    if lines != WARM_UP + args.steps:
        print(f"watch.py: {lines} lines of metrics were written, not {WARM_UP + args.steps}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(result))
    return 0 if result["share"] <= LIMIT else 1


class Minutes:
    """Clock and Interrupts of a watch for WATCHED_MINUTES, which pass at once; notes when the scheduler is asked."""

    cancel = leave = detach = False

    def __init__(self) -> None:
        self.now, self.asked = 0.0, list[float]()
        sys.addaudithook(self._audit)

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.detach = self.now >= WATCHED_MINUTES * 60

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and not self.detach and Path(str(arguments[0])).name in ASKED:
            self.asked.append(self.now)


def controller_load(runs: int) -> dict[str, float]:
    """How often the watches of so many runs that train ask the scheduler, whose commands are stand-ins."""
    with tempfile.TemporaryDirectory(prefix="ctrain-watch-") as name, contextlib.ExitStack() as changed:
        directory, minutes = Path(name, "watched"), Minutes()
        scale.submit(directory, 1, 1)
        run = directory / "run"
        with (run / "events.jsonl").open("a") as file:
            file.write('{"time": 1764000100.5, "node": "gpu0", "stage": "before", "what": "started", "job": "7"}\n')
        path = f"{directory / 'bin'}:{os.environ['PATH']}"
        changed.enter_context(mock.patch.dict(os.environ, PATH=path))
        changed.enter_context(mock.patch.object(watch, "time", minutes))
        picked = pick_up(run)
        minutes.asked.clear()
        watch.watch(picked, scale.Silent(), minutes)
    first = sum(moment < 60 for moment in minutes.asked)
    later = sum(moment >= 600 for moment in minutes.asked) / (WATCHED_MINUTES - 10)
    return {
        "watched_runs": runs,
        "calls_first_minute": first,
        "calls_per_minute": round(later, 1),
        "controller_calls_per_second": round(runs * later / 60, 1),
    }


def calibrate(seconds: float) -> Callable[[], int]:
    """Work that takes about so long here, at its fastest."""
    count = 100_000
    fastest = min(_seconds_of(lambda: sum(range(count))) for _ in range(20))
    enough = round(count * seconds / fastest)
    return lambda: sum(range(enough))


def _seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(steps: int, work: Callable[[], object]) -> tuple[list[Step], list[Step]]:
    """Steps without and with ctrain's calls, in turns."""
    plain, watched = [], []
    for number in range(1, WARM_UP + steps + 1):
        plain.append(Step(_seconds_of(work)))
        computing = _seconds_of(work)
        calls = _seconds_of(lambda step=number: report(step))
        watched.append(Step(computing + calls, calls))
    return plain[WARM_UP:], watched[WARM_UP:]


def report(step: int) -> None:
    """What a training calls in each step."""
    ctrain_program.beat(step)
    ctrain_program.metrics(step=step, steps=100000, loss=2.5, tokens_per_second=12345.6)


def compare(plain: list[Step], watched: list[Step]) -> dict[str, float]:
    """`share`: what the calls cost of a step, by the medians or by their own mean time, whichever is more: the median
    does not see the step in a second that writes."""
    without, with_calls = (statistics.median(step.all for step in steps) for steps in (plain, watched))
    calls = [step.calls for step in watched]
    share = max(with_calls - without, statistics.mean(calls)) / without
    return {
        "step_ms": round(without * 1000, 3),
        "watched_step_ms": round(with_calls * 1000, 3),
        "calls_us": round(statistics.mean(calls) * 1e6, 1),
        "calls_median_us": round(statistics.median(calls) * 1e6, 1),
        "share": round(share, 5),
        "limit": LIMIT,
        "steps": len(plain),
    }


def table(result: dict[str, float]) -> str:
    lines = [
        f"step without calls, median       {result['step_ms']:>9.3f} ms",
        f"step with calls, median          {result['watched_step_ms']:>9.3f} ms",
        f"beat() and metrics(), mean       {result['calls_us']:>9.1f} us",
        f"beat() and metrics(), median     {result['calls_median_us']:>9.1f} us",
        f"share of a step: {result['share']:.2%} (limit {result['limit']:.0%})",
        f"one watch asks the scheduler {result['calls_first_minute']:g} times in the first minute,"
        f" later {result['calls_per_minute']:g} times a minute",
        f"{result['watched_runs']:g} watched runs: {result['controller_calls_per_second']:g} questions a second",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
