"""What large runs cost ctrain itself: to plan and submit one, to watch it, and to conclude it.

    python benchmarks/scale.py [--nodes N] [--watched-nodes N] [--ranks-per-node N] [--json]

The cluster is simulated: Slurm's commands print the records of a real one, with as many nodes, and the run that is
watched is a directory of files such as ranks write. How to read the result: benchmarks/README.md.
"""

# ruff: noqa: E402  # the path comes before imports: tests/samples is no package that is installed
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "runtime", "builder")]

from ctrain_runtime.run.pick_up import pick_up
from ctrain_runtime.run.watch import watch
from samples.programs import install, write_program
from samples.recordings import record
from samples.sample_images import write_image

Figures = dict[str, float]

SLURM = "24.11.5"  # the version whose records are printed
SECONDS_LIMIT, MEGABYTES_LIMIT = 2.0, 300.0  # of the plan
MOST_RANKS = 8  # per node: as many cores and GPUs have the recorded nodes
SECONDS_OF_STATE = 2.0  # for each state of the run that is watched
CTRAIN = "import sys; from ctrain_builder.cli.main import main; sys.exit(main())"
COMMANDS = {
    "scontrol": """\
case "$*" in
  *node) cat "$records/nodes" ;;
  *partition) cat "$records/partitions" ;;
  *config) cat "$records/config" ;;
  *) cat "$records/job" ;;
esac""",
    "srun": 'cat "$records/mpi"',
    "sbatch": "cat >/dev/null; echo 7",
    "squeue": "",
    "scancel": "",
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures what large runs cost ctrain itself.")
    parser.add_argument("--nodes", type=int, default=10_000, metavar="N", help="of the plan (default: 10000)")
    parser.add_argument("--watched-nodes", type=int, default=1000, metavar="N", help="of the run (default: 1000)")
    parser.add_argument("--ranks-per-node", type=int, default=8, metavar="N", help="of both (default: 8)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    if min(args.nodes, args.watched_nodes) < 1 or not 1 <= args.ranks_per_node <= MOST_RANKS:
        parser.error(f"nodes must be positive integers, and ranks per node 1 to {MOST_RANKS}")
    with tempfile.TemporaryDirectory(prefix="ctrain-scale-") as directory:
        result = {
            "nodes": args.nodes,
            "watched_nodes": args.watched_nodes,
            "ranks_per_node": args.ranks_per_node,
            "plan": submit(Path(directory, "planned"), args.nodes, args.ranks_per_node),
            **follow(Path(directory, "watched"), args.watched_nodes, args.ranks_per_node),
            "seconds_limit": SECONDS_LIMIT,
            "megabytes_limit": MEGABYTES_LIMIT,
        }
    print(table(result))
    if args.json:
        print(json.dumps(result))
    return 1 if misses(result["plan"]) else 0


def misses(plan: Figures) -> bool:
    return plan["seconds"] > SECONDS_LIMIT or plan["megabytes"] > MEGABYTES_LIMIT


def submit(directory: Path, nodes: int, ranks_per_node: int) -> Figures:
    """The cost of `ctrain submit` in `directory`; the run is DIRECTORY/run."""
    simulate_cluster(directory, nodes)
    image = write_image(directory, layers=(), software={"torch": "2.13.0"})
    cost = measure(
        *(directory, "submit", "--site=generic-slurm", f"--image={image}", f"--runs={directory}", "--name=run"),
        *("--launcher=env", "--preflight=strict", f"--nodes={nodes}", f"--ranks-per-node={ranks_per_node}"),
        *("--", "true"),
    )
    files = [path for path in (directory / "run").rglob("*") if path.is_file() and "inside" not in path.parts]
    return {**cost, "kilobytes_written": round(sum(path.stat().st_size for path in files) / 1e3, 1)}


def simulate_cluster(directory: Path, nodes: int) -> None:
    """Slurm's commands and an engine, in DIRECTORY/bin."""
    records, programs = directory / "records", directory / "bin"
    records.mkdir(parents=True)
    node = record(SLURM, "show-node-oneline.out").splitlines(keepends=True)[0]
    with (records / "nodes").open("w") as file:
        file.writelines(node.replace("gpu03", f"gpu{number:05}") for number in range(nodes))
    (records / "job").write_text("JobId=7 JobName=run JobState=RUNNING Reason=None\n")
    for name, recorded in (
        ("partitions", "show-partition.out"),
        ("config", "config-lines.out"),
        ("mpi", "mpi-list.out"),
    ):
        (records / name).write_text(record(SLURM, recorded))
    install(programs, "apptainer")
    for name, script in COMMANDS.items():
        write_program(programs / name, f"#!/bin/sh\nrecords={records}\n{script}\n")


def measure(directory: Path, *arguments: str, code: int = 0) -> Figures:
    """Wall time, CPU time and peak memory of `ctrain ARGUMENTS`, a process of its own, which is to end with `code`.
    The memory is that of ctrain, or of the largest command that it starts."""
    environment = {
        "PATH": f"{directory / 'bin'}:/usr/bin:/bin",
        "HOME": str(directory),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", CTRAIN, *arguments], env=environment, stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != code:
            output.seek(0)
            raise SystemExit(f"ctrain {arguments[0]} failed with exit code {process.returncode}:\n{output.read()}")
    cpu = usage.ru_utime + usage.ru_stime
    return {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "megabytes": round(usage.ru_maxrss / 1e3, 1)}


class Life:
    """The Interrupts of a watch: lets its run go on to the next state every SECONDS_OF_STATE, notes what the watch has
    done meanwhile, and ends it after the last state."""

    cancel = leave = detach = False

    def __init__(self, run: Path, states: dict[str, Callable[[], None]]) -> None:
        self.costs: dict[str, Figures] = {}
        self._run, self._states, self._files = f"{run}/", list(states.items()), 0
        sys.addaudithook(self._audit)
        self._begin()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)
        self._looks += 1
        passed = time.perf_counter() - self._started
        if passed < SECONDS_OF_STATE:
            return
        self.costs[self._states.pop(0)[0]] = {
            "looks_per_s": round(self._looks / passed, 1),
            "files_per_s": round(self._files / passed, 1),
            "kilobytes_per_s": round((bytes_read() - self._read) / passed / 1e3, 1),
            "cpu_percent": round((time.process_time() - self._cpu) / passed * 100, 1),
        }
        if self._states:
            self._begin()
        else:
            self.detach = True

    def _begin(self) -> None:
        self._states[0][1]()
        self._looks, self._files, self._read = 0, 0, bytes_read()
        self._cpu, self._started = time.process_time(), time.perf_counter()

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        self._files += event == "open" and str(arguments[0]).startswith(self._run)


def bytes_read() -> int:
    """What this process has read from files so far (man 5 proc, io)."""
    return int(Path("/proc/self/io").read_text().split()[1])


def follow(directory: Path, nodes: int, per_node: int) -> Figures:
    """What each look at a run costs, in each of its states, and what `ctrain attach` costs once it has failed."""
    submit(directory, nodes, per_node)
    run = directory / "run"
    os.environ["PATH"] = f"{directory / 'bin'}:{os.environ['PATH']}"

    def events(what: str, ranks: range, more: str = "") -> None:
        for node in range(nodes):
            with (run / "nodes" / f"{node}.jsonl").open("a") as file:
                for rank in (node * per_node + local for local in ranks):
                    number = more if rank else more.replace("143", "1")
                    file.write(f'{{"time": 1764000100.5, "stage": "run", "node": "gpu{node:05}", "what": "{what}", ')
                    file.write(f'"rank": {rank}{number}}}\n')

    def job(text: str) -> None:
        with (run / "events.jsonl").open("a") as file:
            file.write(f'{{"time": 1764000100.5, "node": "gpu00000", {text}}}\n')

    def output() -> None:
        (run / "logs" / "rank0.log").write_text("epoch 1\n")

    half = per_node // 2
    life = Life(
        run,
        {
            "no rank up": lambda: job('"stage": "before", "what": "started", "job": "7"'),
            "half of each node's ranks up": lambda: events("started", range(half)),
            "all ranks up": lambda: events("started", range(half, per_node)),
            "training": output,
        },
    )
    watch(pick_up(run), Silent(), life)
    events("ended", range(per_node), ', "code": 143')
    lines = (f"srun: error: gpu{node:05}: tasks {node * per_node}: Terminated\n" for node in range(nodes))
    (run / "logs" / "job.log").write_text("srun: error: gpu00000: task 0: Exited with exit code 1\n" + "".join(lines))
    job('"stage": "after", "what": "ended", "code": 1')
    (directory / "records" / "job").write_text("JobId=7 JobName=run JobState=FAILED Reason=NonZeroExitCode\n")
    attach = measure(directory, "attach", str(run), f"--runs={directory}", "--site=generic-slurm", code=1)
    return {"watch": life.costs, "attach": attach}


class Silent:
    """A RunObserver that shows nothing."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None


def table(result: dict[str, Any]) -> str:
    plan, attach, ranks = result["plan"], result["attach"], result["ranks_per_node"]
    missed = f"; above {SECONDS_LIMIT:g} s or {MEGABYTES_LIMIT:g} MB" if misses(plan) else ""
    lines = [
        f"{result['nodes']:,} nodes x {ranks} ranks",
        f"{'  ctrain submit':<34}{plan['seconds']:>6.2f} s ({plan['cpu_seconds']:.2f} of CPU)"
        f"{plan['megabytes']:>6.0f} MB{plan['kilobytes_written']:>6.0f} kB written{missed}",
        f"{result['watched_nodes']:,} nodes x {ranks} ranks",
        f"{'  watched, while':<34}{'looks/s':>8}{'files/s':>9}{'kB/s':>8}{'CPU':>8}",
    ]
    for state, cost in result["watch"].items():
        numbers = f"{cost['looks_per_s']:>8.1f}{cost['files_per_s']:>9.0f}{cost['kilobytes_per_s']:>8.0f}"
        lines.append(f"    {state:<30}{numbers}{cost['cpu_percent']:>6.1f} %")
    concluded = (
        f"{'  ctrain attach, once it has failed':<35}{attach['seconds']:>5.2f} s ({attach['cpu_seconds']:.2f} of CPU)"
        f"{attach['megabytes']:>6.0f} MB"
    )
    return "\n".join([*lines, concluded])


if __name__ == "__main__":
    sys.exit(main())
