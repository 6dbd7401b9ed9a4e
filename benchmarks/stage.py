"""Copies an image to the disks of nodes with slow links: by ctrain's chain, and with all nodes reading one file server.

    python benchmarks/stage.py [--nodes N] [--megabytes N] [--megabits N] [--json]

The nodes are network namespaces of this machine, and each link is held to a rate by tc. The first of them is the file
server: its link is the one that all reads of a shared file system cross. It needs root. How to read the result:
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctrain_runtime.payload import FOLDER
from ctrain_runtime.plan.staging import START_SECONDS, copy_seconds, shared_seconds

LIMIT = 1.5  # times what one link needs for the image
ROUNDS = 3  # of the chain: the fastest counts, since what else runs on the machine only slows it
SIMULATED_NODES = (8, 32, 128, 512)
SIMULATED_BYTES, SIMULATED_RATE = 8e9, 1.25e9  # an image for GPUs; 10 Gb/s
CANNOT_RUN = 77  # exit code, as of tests/cluster/cluster
PORT = 61000
NETWORK = "10.213.78"  # tests/cluster has another
FETCH = "import shutil, sys, urllib.request as u; shutil.copyfileobj(u.urlopen(sys.argv[1]), open(sys.argv[2], 'wb'))"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the copy of an image to nodes with slow links.")
    parser.add_argument("--nodes", type=int, default=8, metavar="N", help="nodes, besides the file server (default: 8)")
    parser.add_argument("--megabytes", type=int, default=128, metavar="N", help="size of the image (default: 128)")
    parser.add_argument(
        "--megabits", type=int, default=100, metavar="N", help="rate of each link, per second (default: 100)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    if min(args.nodes, args.megabytes, args.megabits) < 1:
        parser.error("numbers must be positive integers")
    missing = [name for name in ("ip", "tc") if not shutil.which(name)]
    if os.geteuid() != 0 or missing:
        problem = f"{missing[0]} not found" if missing else "it must run as root, for network namespaces"
        print(f"stage.py: {problem}", file=sys.stderr)
        return CANNOT_RUN
    size, rate = args.megabytes * 10**6, args.megabits * 10**6 / 8
    with (
        tempfile.TemporaryDirectory(prefix="ctrain-stage-", dir="/var/tmp") as folder,
        namespaces(args.nodes + 1, args.megabits) as names,
    ):
        image = Path(folder) / "image.sif"
        image.write_bytes(os.urandom(size))
        chain = min(time_chain(names, image, Path(folder, f"round{number}")) for number in range(ROUNDS))
        shared = time_shared(names, image, Path(folder))
    result = summary(args.nodes, size, rate, chain, shared)
    print(table(result))
    if args.json:
        print(json.dumps(result))
    return 0 if result["ratio"] <= LIMIT else 1


@contextlib.contextmanager
def namespaces(count: int, megabits: int) -> Iterator[list[str]]:
    """Network namespaces on one bridge, whose links carry `megabits` per second in each direction."""
    base = f"cts{os.getpid()}"
    names = [f"{base}n{number}" for number in range(count)]
    with contextlib.ExitStack() as undo:
        run("ip", "link", "add", base, "type", "bridge")
        undo.callback(run, "ip", "link", "del", base)
        run("ip", "link", "set", base, "up")
        for number, name in enumerate(names):
            run("ip", "netns", "add", name)
            undo.callback(run, "ip", "netns", "del", name)
            run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", name, "master", base, "up")
            inside = ("ip", "netns", "exec", name)
            run(*inside, "ip", "address", "add", f"{address(number)}/24", "dev", "eth0")
            run(*inside, "ip", "link", "set", "eth0", "up")
            for where, device in (((), name), (inside, "eth0")):
                limit = ("tbf", "rate", f"{megabits}mbit", "burst", "256kb", "latency", "50ms")
                run(*where, "tc", "qdisc", "add", "dev", device, "root", *limit)
        yield names


def run(*argv: str) -> None:
    subprocess.run(argv, check=True)


def address(number: int) -> str:
    return f"{NETWORK}.{number + 1}"


def time_chain(names: list[str], image: Path, folder: Path) -> float:
    """The seconds until all nodes have the image by relay.py, which the file server begins."""
    folder.mkdir()
    key = folder / "key"
    key.write_bytes(b"k" * 32)
    where = (image, image.stat().st_size, f"{hashlib.sha256(image.read_bytes()).hexdigest()}.sif")
    commands = []
    for number in range(len(names)):
        before = f"{address(number - 1)}:{PORT}" if number else ""
        after = PORT if number < len(names) - 1 else 0
        argv = (sys.executable, "-I", FOLDER / "relay.py", *where, folder / f"disk{number}", key, 10, before, after)
        commands.append(tuple(map(str, argv)))
    return timed(names, commands)


def time_shared(names: list[str], image: Path, folder: Path) -> float:
    """The seconds until all nodes have read the image from the file server."""
    serve = [sys.executable, "-m", "http.server", "--directory", str(folder), str(PORT)]
    quiet = subprocess.DEVNULL
    url = f"http://{address(0)}:{PORT}/{image.name}"
    with subprocess.Popen(["ip", "netns", "exec", names[0], *serve], stdout=quiet, stderr=quiet) as server:
        try:
            time.sleep(1)  # until it listens
            commands = [(sys.executable, "-c", FETCH, url, os.devnull) for _ in names[1:]]
            return timed(names[1:], commands)
        finally:
            server.kill()


def timed(names: list[str], commands: list[tuple[str, ...]]) -> float:
    """The seconds until all commands have ended, each in its namespace."""
    start = time.monotonic()
    processes = [subprocess.Popen(["ip", "netns", "exec", name, *argv]) for name, argv in zip(names, commands)]
    codes = [process.wait() for process in processes]
    seconds = time.monotonic() - start
    if any(codes):
        raise SystemExit(f"a node failed: exit codes {codes}")
    return seconds


def summary(nodes: int, size: int, rate: float, chain: float, shared: float) -> dict[str, Any]:
    """What was measured, and what the cost model of `--stage auto` has for it and for more nodes. A model's seconds
    are without the start of the step, which is not measured here."""
    limit = size / rate
    measured = {"limit_s": limit, "chain_s": chain, "shared_s": shared, "ratio": chain / limit}
    model = [
        simulate(nodes, size, rate),
        *(simulate(count, int(SIMULATED_BYTES), SIMULATED_RATE) for count in SIMULATED_NODES),
    ]
    return {
        **{name: round(value, 2) for name, value in measured.items()},
        "limit_ratio": LIMIT,
        "shared_ratio": round(shared / limit, 2),
        "nodes": nodes,
        "bytes": size,
        "bytes_per_s": rate,
        "simulated": model,
    }


def simulate(nodes: int, size: int, rate: float) -> dict[str, Any]:
    chain, shared = copy_seconds(size, nodes, rate) - START_SECONDS, shared_seconds(size, nodes, rate)
    figures = {"chain_s": chain, "shared_s": shared, "ratio": chain / (size / rate)}
    return {"nodes": nodes, "bytes": size, "bytes_per_s": rate} | {name: round(figures[name], 2) for name in figures}


def table(result: dict[str, Any]) -> str:
    def row(kind: str, figures: dict[str, Any]) -> str:
        limit = figures["bytes"] / figures["bytes_per_s"]
        sizes = f"{figures['bytes'] / 1e6:>7.0f} MB {figures['bytes_per_s'] / 1e6:>6.0f} MB/s"
        times = f"{limit:>8.1f} s {figures['chain_s']:>8.1f} s {figures['ratio']:>7.2f} {figures['shared_s']:>9.1f} s"
        return f"{kind:<10}{figures['nodes']:>5} {sizes} {times}"

    head = f"{'':10}{'nodes':>5} {'image':>10} {'link':>11} {'one link':>10} {'chain':>10} {'ratio':>7} {'shared':>11}"
    return "\n".join([head, row("measured", result), *(row("model", figures) for figures in result["simulated"])])


if __name__ == "__main__":
    sys.exit(main())
