"""How long `ctrain --help` takes, beside the least that a Python command with YAML and options can take.

    python benchmarks/startup.py [--repetitions N] [--json]

Run it with the Python that ctrain is installed for. Both commands take turns, so that a busy moment of the
machine hits both; medians are compared. How to read the result: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

Argv = tuple[str, ...]

LIMIT = 2.0  # ctrain may take this many times as long as the bare imports
BARE = (sys.executable, "-c", "import yaml, argparse")
WARM_UP = 2  # rounds that are not counted: byte code and the page cache


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the start-up time of ctrain.")
    parser.add_argument("--repetitions", type=int, default=30, metavar="N", help="runs of each (default: 30)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error(f"--repetitions {args.repetitions}: at least 1 is needed")
    # The console script beside the interpreter, whatever ctrain is on PATH: both must be of the same Python.
    ctrain = Path(sys.executable).with_name("ctrain")
    if not ctrain.is_file():
        parser.error(f"{ctrain} does not exist; use the Python that ctrain is installed for, as in .venv/bin/python")
    bare, own = measure(BARE, (str(ctrain), "--help"), args.repetitions)
    result = {
        "bare_ms": round(statistics.median(bare) * 1000, 1),
        "ctrain_ms": round(statistics.median(own) * 1000, 1),
        "ratio": round(statistics.median(own) / statistics.median(bare), 2),
        "limit": LIMIT,
        "repetitions": args.repetitions,
    }
    print(table(bare, own, result["ratio"]))
    if args.json:
        print(json.dumps(result))
    return 0 if result["ratio"] <= LIMIT else 1


def measure(one: Argv, other: Argv, repetitions: int) -> tuple[list[float], list[float]]:
    """Wall times in seconds of two commands that take turns."""
    rounds = [(seconds(one), seconds(other)) for _ in range(WARM_UP + repetitions)][WARM_UP:]
    return [pair[0] for pair in rounds], [pair[1] for pair in rounds]


def seconds(argv: Argv) -> float:
    started = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, cwd=os.sep)
    return time.perf_counter() - started


def table(bare: list[float], own: list[float], ratio: float) -> str:
    rows = [("python -c 'import yaml, argparse'", bare), ("ctrain --help", own)]
    lines = [f"{'command':<34}{'median':>10}{'fastest':>10}{'slowest':>10}"]
    for name, times in rows:
        figures = (statistics.median(times), min(times), max(times))
        lines.append(f"{name:<34}" + "".join(f"{figure * 1000:>7.1f} ms" for figure in figures))
    return "\n".join([*lines, f"ratio of the medians: {ratio:.2f} (limit {LIMIT:g})"])


if __name__ == "__main__":
    sys.exit(main())
