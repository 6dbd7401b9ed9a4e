"""How long `make demo` takes from a fresh clone with empty caches, phase by phase.

    python benchmarks/cold.py [--work DIR] [--json]

It needs root and a machine without a running test cluster. Debian packages are installed once in a machine's life, so
their phase is cold only on a fresh machine; the table says whether this was one. How to read it: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OWNER = Path("/sys/class/net/ctrain0/ifalias")  # of the network of a test cluster that is up: its folder
RECORD = Path("build/demo/phases.jsonl")  # of the demo, in its checkout
PACKAGES = ("apptainer", "slurmctld", "debootstrap")  # programs that only the demo's packages bring
LIMIT = 360.0  # seconds, on 2 cores
CANNOT_RUN = 77


@dataclass(frozen=True)
class Phase:
    """A phase of the demo, or a step of its image's build. Times are in seconds; `start` counts from the demo's."""

    name: str
    start: float
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures make demo from a fresh clone with empty caches.")
    parser.add_argument(
        "--work", type=Path, default=Path("/var/tmp"), metavar="DIR", help="for clone and caches, 8 GB (/var/tmp)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    problem = why_not()
    if problem:
        print(f"cold.py: {problem}", file=sys.stderr)
        return CANNOT_RUN
    fresh = not all(map(shutil.which, PACKAGES))
    with tempfile.TemporaryDirectory(prefix="ctrain-cold-", dir=args.work) as folder:
        Path(folder).chmod(0o755)  # the cluster's user has his home in it
        result = measure(Path(folder), fresh)
    print(table(result))
    if args.json:
        print(json.dumps(result))
    return 0 if result["seconds"] <= LIMIT else 1


def why_not() -> str:
    """Why this machine can't measure now; "" if it can."""
    if os.geteuid() != 0:
        return "it must run as root, as make demo"
    if OWNER.exists():  # a machine can have one cluster
        owner = OWNER.read_text().strip()
        return f"the test cluster of {owner} is up. Run: CTRAIN_CLUSTER_DIR={owner} make down"
    return ""


def measure(folder: Path, fresh: bool) -> dict[str, Any]:
    """Run the demo in a clone of this checkout's last commit, with everything that it leaves in `folder`."""
    clone = folder / "checkout"
    environment = surroundings(os.environ, folder)
    started = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    try:
        subprocess.run(["make", "demo"], cwd=clone, env=environment, check=True)
        seconds = time.monotonic() - started
        phases = parse(clone.joinpath(RECORD).read_text()) + steps(folder / "cache")
    finally:
        subprocess.run([clone / "tests/cluster/cluster", "down"], env=environment, stdout=subprocess.DEVNULL)
    return summary(seconds, phases, fresh)


def surroundings(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Environment variables by which nothing that an earlier run has left is used, and the machine's own stays."""
    own = {name: value for name, value in variables.items() if name not in ("CTRAIN_STORE", "CTRAIN_CACHE_SIZE")}
    paths = {"CTRAIN_CACHE": folder / "cache", "CTRAIN_CLUSTER_DIR": folder / "cluster"}
    return {**own, **{name: str(path) for name, path in paths.items()}, "PIP_NO_CACHE_DIR": "1"}


def parse(record: str) -> list[Phase]:
    """The phases that a demo has recorded, in the order in which they began."""
    lines = map(json.loads, record.splitlines())
    phases = [Phase(line["phase"], line["start_ms"] / 1000, line["ms"] / 1000) for line in lines]
    return sorted(phases, key=lambda phase: phase.start)


def steps(cache: Path) -> list[Phase]:
    """The layers, the image and its tests, as the builder remembers them. When they began it does not."""
    layers = sorted(cache.glob("inputs/*.json"), key=lambda path: path.stat().st_mtime_ns)
    # NAME_TAG-STACK.DEFINITION.json
    found = {f"layer {path.stem.rpartition('.')[2]}": json.loads(path.read_text())["seconds"] for path in layers}
    for path in cache.glob("durations/*.json"):
        found.update(json.loads(path.read_text()))
    return [Phase(f"image: {name}", 0.0, float(took)) for name, took in found.items()]


def summary(seconds: float, phases: list[Phase], fresh: bool) -> dict[str, Any]:
    return {
        "seconds": round(seconds, 1),
        "limit": LIMIT,
        "cores": len(os.sched_getaffinity(0)),
        "packages_were_installed": not fresh,
        "phases": {phase.name: round(phase.seconds, 1) for phase in phases},
        "starts": {phase.name: round(phase.start, 1) for phase in phases if not phase.name.startswith("image: ")},
    }


def table(result: Mapping[str, Any]) -> str:
    """The phases, of which some run side by side: their times add up to more than the whole."""
    lines = [f"{'phase':<40}{'begins':>10}{'takes':>10}"]
    for name, seconds in result["phases"].items():
        start = result["starts"].get(name)
        begins = "" if start is None else f"{start:.1f} s"
        lines.append(f"{name:<40}{begins:>10}{seconds:>8.1f} s")
    lines.append(f"{'from git clone to a trained network':<50}{result['seconds']:>8.1f} s (limit {result['limit']:g})")
    if result["packages_were_installed"]:
        lines.append("Debian packages were installed before: on a fresh machine, add about half a minute")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
