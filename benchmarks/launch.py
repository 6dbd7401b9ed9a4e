"""What `ctrain run` adds to the bare command that an expert would type: srun, and in it apptainer exec.

    python benchmarks/launch.py [--repetitions N] [--launcher NAME ...] [--ctrain PATH] [--json]

Both take turns on the cluster of tests/cluster, as its researcher; medians are compared. It needs root, and a cluster
that is up and provisioned. How to read the result: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ctrain_runtime import image, layout
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.run.events import read_job_events
from ctrain_runtime.store import open_store

Argv = tuple[str, ...]
Figures = dict[str, float]

CLUSTER = Path(__file__).resolve().parents[1] / "tests" / "cluster" / "cluster"
STATE = Path(os.environ.get("CTRAIN_CLUSTER_DIR", "/var/lib/ctrain-cluster"))
STORE = STATE / "apps" / "ctrain"
IMAGE = "pytorch-cpu"
NODES, RANKS_PER_NODE = 2, 2
LIMIT_SECONDS = 0.5  # that ctrain may take longer than the bare command
WARM_UP_ROUNDS = 1  # not counted: page cache, and what ctrain finds out once per user
IDLE_TIMEOUT_SECONDS = 60
IDLE_POLL_SECONDS = 0.5
# The controller starts jobs of sbatch at most every 3 s (man slurm.conf, batch_sched_delay), those of srun at once. A
# rested one looks for them every second: half a second is lost to that, which no client can change.
REST_SECONDS = 3.5
CANNOT_RUN = 77  # exit code, as of tests/cluster/cluster

READY, OUTPUT = "login session is ready", "output of the program"
# Rank 0 alone prints: ctrain shows its output, bare srun that of whichever rank is first. RANK is that of torchrun.
PROGRAMS = {
    "trivial": ("sh", "-c", f'[ "${{RANK:-$SLURM_PROCID}}" != 0 ] || echo "{OUTPUT}"'),
    "torch": (
        *("python3", "-c"),
        "import os, torch; get = os.environ.get; "
        f"get('RANK', get('SLURM_PROCID')) != '0' or print('{OUTPUT}', flush=True)",
    ),
}
TORCHRUN = (
    *("torchrun", f"--nnodes={NODES}", f"--nproc-per-node={RANKS_PER_NODE}", "--rdzv-backend=c10d"),
    *("--rdzv-endpoint=node01:29500", "--no-python"),
)
# Of each launcher the tasks per node and the MPI flavour of bare srun, and what starts the ranks in the image. By hand,
# Horovod over Gloo has no server for its ranks: what ctrain adds for launcher gloo holds the start of one.
LAUNCHERS: dict[str, tuple[int, str, Argv]] = {
    "mpi": (RANKS_PER_NODE, "pmix", ()),
    "env": (RANKS_PER_NODE, "none", ()),
    "torchrun": (1, "none", TORCHRUN),
    "gloo": (RANKS_PER_NODE, "none", ()),
}


@dataclass(frozen=True)
class Times:
    """When a command started, when its program's first line came, and when it ended: in seconds since the epoch."""

    start: float
    first_output: float
    end: float


@dataclass(frozen=True)
class Phases:
    """Seconds of a run of ctrain: until it submits, until the job starts, until it ends, until ctrain ends."""

    before_s: float
    queued_s: float
    job_s: float
    after_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures what ctrain adds to the start and the end of a job.")
    parser.add_argument("--repetitions", type=int, default=7, metavar="N", help="runs of each (default: 7)")
    parser.add_argument("--ctrain", default="ctrain", metavar="PATH", help="default: what provision installed")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS, help="repeatable (default: all)")
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error("--repetitions must be a positive integer")
    problem = missing()
    if problem:
        print(f"launch.py: {problem}", file=sys.stderr)
        return CANNOT_RUN
    # The researcher's own shell knows the home; the text is a constant.
    runs = subprocess.check_output(session("sh", "-c", 'mktemp -d "$HOME/launch-XXXXXX"'), text=True).strip()
    try:
        programs = {
            f"{launcher} {name}": measure(args.ctrain, Path(runs), launcher, argv, args.repetitions)
            for launcher in args.launcher or LAUNCHERS
            for name, argv in PROGRAMS.items()
        }
    finally:
        subprocess.run(session("rm", "-r", runs), check=True)
    result = summary(programs, args.repetitions)
    print(table(programs))
    if args.json:
        print(json.dumps(result))
    return 0 if max(result["extra_s"], result["first_output_extra_s"]) <= LIMIT_SECONDS else 1


def missing() -> str:
    """What this needs and does not have, with the command to type; "" if nothing."""
    if os.geteuid() != 0:
        return "it must run as root, for the test cluster"
    status = subprocess.run([CLUSTER, "status"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if status.returncode != 0:
        return "the test cluster is not up. Start it with: tests/cluster/cluster up"
    try:
        plain_argv()
    except CtrainError as error:
        return f"the test cluster has no image: {error.message}. Run: tests/cluster/provision"
    return ""


def plain_argv() -> Argv:
    """The command that runs the image without ctrain. Raises CtrainError when the store does not have it."""
    return image.find((IMAGE,), [open_store(STORE)], platform.machine()).plain_argv


def srun(launcher: str) -> Argv:
    tasks, mpi, _ = LAUNCHERS[launcher]
    size = (f"--nodes={NODES}", f"--ntasks={NODES * tasks}", f"--ntasks-per-node={tasks}")
    cores = f"--cpus-per-task={RANKS_PER_NODE // tasks}"
    return ("srun", *size, cores, f"--gres=gpu:{RANKS_PER_NODE}", "--mem=4G", f"--mpi={mpi}")


def ctrain_run(ctrain: str, runs: Path, launcher: str) -> Argv:
    size = (f"--nodes={NODES}", f"--ranks-per-node={RANKS_PER_NODE}", f"--gpus-per-node={RANKS_PER_NODE}")
    return (ctrain, "run", *size, f"--launcher={launcher}", f"--image={IMAGE}", f"--runs={runs}", "--")


def session(*argv: str) -> list[str]:
    """The argv that runs `argv` in the home of the researcher, on the login node."""
    path = f"{STATE}/apps/venv/bin:/usr/local/bin:/usr/bin:/bin"
    return [str(CLUSTER), "run", "--setenv", f"CTRAIN_STORE={STORE}", "--setenv", f"PATH={path}", "--", *argv]


def measure(ctrain: str, runs: Path, launcher: str, program: Argv, repetitions: int) -> Figures:
    """Both commands in turns. `runs` is where ctrain keeps its runs."""
    bare, own, phases = [], [], []
    for _ in range(WARM_UP_ROUNDS + repetitions):
        bare.append(run_timed((*srun(launcher), *plain_argv(), *LAUNCHERS[launcher][2], *program)))
        own.append(run_timed((*ctrain_run(ctrain, runs, launcher), *program)))
        phases.append(phases_of(own[-1], max(runs.iterdir(), key=lambda path: path.stat().st_mtime)))
    return compare(bare[WARM_UP_ROUNDS:], own[WARM_UP_ROUNDS:], phases[WARM_UP_ROUNDS:])


def run_timed(argv: Argv) -> Times:
    """Run a command on idle nodes. The clock starts when the researcher's session does."""
    wait_until_idle()
    start, first_output, lines = 0.0, 0.0, []
    announced = session("sh", "-c", f'echo "{READY}"; exec "$@"', "sh", *argv)
    with subprocess.Popen(announced, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            lines.append(line)
            if line.strip() == READY:
                start = time.time()
            elif line.strip() == OUTPUT:
                first_output = first_output or time.time()
    if process.returncode != 0 or not first_output:
        raise SystemExit(f"{argv[0]} failed with exit code {process.returncode}:\n{''.join(lines)}")
    return Times(start, first_output, time.time())


def wait_until_idle() -> None:
    deadline = time.monotonic() + IDLE_TIMEOUT_SECONDS
    while subprocess.check_output(session("squeue", "--noheader"), text=True).strip():
        if time.monotonic() > deadline:
            raise SystemExit("the cluster is busy. Retry when `squeue` shows no jobs")
        time.sleep(IDLE_POLL_SECONDS)
    time.sleep(REST_SECONDS)


def phases_of(times: Times, run: Path) -> Phases:
    """The phases of a run by what it left: its plan, written right before the submission, and its job's events."""
    submitted = (run / layout.PLAN).stat().st_mtime
    events = [event.time or 0.0 for event in read_job_events(run)]
    return Phases(submitted - times.start, events[0] - submitted, events[-1] - events[0], times.end - events[-1])


def compare(bare: list[Times], own: list[Times], phases: list[Phases]) -> Figures:
    """Medians of both, in seconds, what ctrain adds, and the medians of its phases."""

    def medians(length: Callable[[Times], float]) -> tuple[float, float]:
        return statistics.median(map(length, bare)), statistics.median(map(length, own))

    bare_end, own_end = medians(lambda times: times.end - times.start)
    bare_first, own_first = medians(lambda times: times.first_output - times.start)
    figures = {
        "bare_s": bare_end,
        "ctrain_s": own_end,
        "ratio": own_end / bare_end,
        "extra_s": own_end - bare_end,
        "bare_first_output_s": bare_first,
        "ctrain_first_output_s": own_first,
        "first_output_extra_s": own_first - bare_first,
        **{name: statistics.median(getattr(phase, name) for phase in phases) for name in asdict(phases[0])},
    }
    figures["own_extra_s"] = figures["extra_s"] - figures["queued_s"]
    figures["own_first_output_extra_s"] = figures["first_output_extra_s"] - figures["queued_s"]
    return {name: round(value, 2) for name, value in figures.items()}


def summary(programs: dict[str, Figures], repetitions: int) -> dict[str, Any]:
    """The worst of each figure that is compared, and all figures of each program."""
    compared = ("ratio", "extra_s", "first_output_extra_s", "queued_s", "own_extra_s", "own_first_output_extra_s")
    worst = {name: max(figures[name] for figures in programs.values()) for name in compared}
    return {**worst, "limit_s": LIMIT_SECONDS, "repetitions": repetitions, "programs": programs}


def table(programs: dict[str, Figures]) -> str:
    lines = [f"{'launcher, program':<18}{'until':<14}{'bare':>9}{'ctrain':>9}{'more':>9}{'its own':>9}"]
    for name, figures in programs.items():
        for until, prefix in (("first output", "first_output_"), ("end", "")):
            extra, own = figures[f"{prefix}extra_s"], figures[f"own_{prefix}extra_s"]
            columns = (figures[f"bare_{prefix}s"], figures[f"ctrain_{prefix}s"], extra, own)
            row = f"{name:<18}{until:<14}" + "".join(f"{seconds:>7.2f} s" for seconds in columns)
            lines.append(row + (f"  above {LIMIT_SECONDS:g} s" if extra > LIMIT_SECONDS else ""))
        phases = ", ".join(f"{figures[f'{phase}_s']:.2f} s {phase}" for phase in ("before", "queued", "job", "after"))
        lines.append(f"{'':18}ctrain: {phases}")
    return "\n".join([*lines, f"limit for what ctrain takes more: {LIMIT_SECONDS:g} s"])


if __name__ == "__main__":
    sys.exit(main())
