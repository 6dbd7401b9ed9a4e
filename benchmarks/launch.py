"""What `ctrain run` adds to the bare command that an expert would type: srun, and in it apptainer exec.

    python benchmarks/launch.py [--all] [--launcher NAME ...] [--repetitions N] [--ctrain PATH] [--json]

Both take turns on the cluster of tests/cluster, as its researcher; medians are compared. It needs root, and a cluster
that is up and provisioned. How to read the result: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.images import image
from ctrain_runtime.run.events import read_job_events, read_node_events
from ctrain_runtime.store.store import open_store

Argv = tuple[str, ...]
Figures = dict[str, float]

CLUSTER = Path(__file__).resolve().parents[1] / "tests" / "cluster" / "cluster"
STATE = Path(os.environ.get("CTRAIN_CLUSTER_DIR", "/var/lib/ctrain-cluster"))
STORE = STATE / "apps" / "ctrain"
IMAGE = "pytorch-cpu"
NODES, RANKS_PER_NODE = 2, 2
LIMIT_SECONDS, LIMIT_SHARE = 0.3, 0.05  # that ctrain may take longer than the bare command: whichever is more
WARM_UP_ROUNDS = 1  # not counted: page cache, and what ctrain finds out once per user
IDLE_TIMEOUT_SECONDS = 60
IDLE_POLL_SECONDS = 0.5
# By default, a controller starts jobs of sbatch at most every 3 s (man slurm.conf, batch_sched_delay), of srun at once.
# It looks for them every second when it is rested: half a second is lost to that, which no client can change.
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

# What `horovodrun --gloo` does by ssh: first its server, which prints its port, then ranks that learn who they are.
HOSTS = ",".join(f"node{node + 1:02d}:{RANKS_PER_NODE}" for node in range(NODES))
SERVER = f"""\
import signal
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer
server = RendezvousServer()
port = server.start()
server.init(get_host_assignments(parse_hosts("{HOSTS}"), {NODES * RANKS_PER_NODE}))
print(port, flush=True)
signal.pause()
"""
WITH_SERVER = """\
coproc SERVER { exec "${@:3:$1}" python3 -c "$2"; }
read -r HOROVOD_GLOO_RENDEZVOUS_PORT <&"${SERVER[0]}"
export HOROVOD_GLOO_RENDEZVOUS_ADDR=$(hostname) HOROVOD_GLOO_RENDEZVOUS_PORT
export HOROVOD_CONTROLLER=gloo HOROVOD_CPU_OPERATIONS=gloo
"${@:3+$1}"
code=$?
kill "$SERVER_PID"
exit "$code"
"""
HOROVOD_RANK = """\
export HOROVOD_RANK=$SLURM_PROCID HOROVOD_SIZE=$SLURM_NTASKS HOROVOD_HOSTNAME=$(hostname)
export HOROVOD_LOCAL_RANK=$SLURM_LOCALID HOROVOD_LOCAL_SIZE=$SLURM_NTASKS_PER_NODE
export HOROVOD_CROSS_RANK=$SLURM_NODEID HOROVOD_CROSS_SIZE=$SLURM_NNODES
exec "$@"
"""


@dataclass(frozen=True)
class Launcher:
    """How both start the same ranks. Bare srun has `tasks` per node and a flavour of MPI, and in the image, ranks are
    started `by_hand`, some with Horovod's `server`; ctrain has an `option`, and a `command` before the program."""

    tasks: int
    mpi: str
    by_hand: Argv = ()
    option: Argv = ()
    command: Argv = ()
    server: bool = False


LAUNCHERS = {
    "mpi": Launcher(RANKS_PER_NODE, "pmix", option=("--launcher=mpi",)),
    "env": Launcher(RANKS_PER_NODE, "none", option=("--launcher=env",)),
    "torchrun": Launcher(1, "none", by_hand=TORCHRUN, option=("--launcher=torchrun",)),
    "gloo": Launcher(
        RANKS_PER_NODE, "none", by_hand=("sh", "-c", HOROVOD_RANK, "sh"), option=("--launcher=gloo",), server=True
    ),
    "mpirun": Launcher(RANKS_PER_NODE, "pmix", command=("mpirun", "-np", str(NODES * RANKS_PER_NODE))),
}
PLACES = ("allocation", "sbatch")  # outside of an allocation, ctrain submits a job by sbatch
DEFAULT_CASES = (
    *(("allocation", launcher, "trivial") for launcher in LAUNCHERS),
    ("allocation", "mpi", "torch"),
    ("sbatch", "mpi", "trivial"),
)
ALL_CASES = tuple((place, launcher, program) for place in PLACES for launcher in LAUNCHERS for program in PROGRAMS)


@dataclass(frozen=True)
class Times:
    """When a command started, when its program's first line came, and when it ended: in seconds since the epoch."""

    start: float
    first_output: float
    end: float


@dataclass(frozen=True)
class Phases:
    """Where the seconds of a run of ctrain go: until it submits; until job.sh runs; until that starts the ranks; until
    the first rank has started; the program, with the container around it; until job.sh ends; until ctrain ends."""

    plan_s: float
    queue_s: float
    job_s: float
    start_s: float
    program_s: float
    end_s: float
    after_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures what ctrain adds to the start and the end of a job.")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="runs of each (default: 5)")
    parser.add_argument("--ctrain", default="ctrain", metavar="PATH", help="default: what provision installed")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS, help="repeatable (default: each)")
    parser.add_argument("--all", action="store_true", help="each launcher, each program, and each by sbatch, too")
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error("--repetitions must be a positive integer")
    problem = missing()
    if problem:
        print(f"launch.py: {problem}", file=sys.stderr)
        return CANNOT_RUN
    wanted = args.launcher or LAUNCHERS
    cases = [case for case in (ALL_CASES if args.all else DEFAULT_CASES) if case[1] in wanted]
    # The researcher's own shell knows the home; the text is a constant.
    runs = subprocess.check_output(session("sh", "-c", 'mktemp -d "$HOME/launch-XXXXXX"'), text=True).strip()
    try:
        results = {" ".join(case): measure(args.ctrain, Path(runs), *case, args.repetitions) for case in cases}
    finally:
        subprocess.run(session("rm", "-r", runs), check=True)
    print(table(results))
    if args.json:
        print(json.dumps(summary(results, args.repetitions)))
    return 1 if any(misses(figures, until) for figures in results.values() for until in ("", "first_output_")) else 0


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


def size(launcher: Launcher) -> Argv:
    tasks = (f"--ntasks={NODES * launcher.tasks}", f"--ntasks-per-node={launcher.tasks}")
    cores = f"--cpus-per-task={RANKS_PER_NODE // launcher.tasks}"
    return (f"--nodes={NODES}", *tasks, cores, f"--gres=gpu:{RANKS_PER_NODE}", "--mem=4G")


def srun(launcher: Launcher) -> Argv:
    container = plain_argv()
    before = ("bash", "-c", WITH_SERVER, "bash", str(len(container)), SERVER, *container) if launcher.server else ()
    return (*before, "srun", *size(launcher), f"--mpi={launcher.mpi}", *container, *launcher.by_hand)


def ctrain_run(ctrain: str, runs: Path, launcher: Launcher) -> Argv:
    ranks = (f"--nodes={NODES}", f"--ranks-per-node={RANKS_PER_NODE}", f"--gpus-per-node={RANKS_PER_NODE}")
    return (ctrain, "run", *ranks, *launcher.option, f"--image={IMAGE}", f"--runs={runs}", "--", *launcher.command)


def session(*argv: str, variables: Sequence[str] = ()) -> list[str]:
    """The argv that runs `argv` in the home of the researcher, on the login node, with these NAME=VALUE."""
    path = f"{STATE}/apps/venv/bin:/usr/local/bin:/usr/bin:/bin"
    settings = (f"CTRAIN_STORE={STORE}", f"PATH={path}", *variables)
    return [str(CLUSTER), "run", *(word for setting in settings for word in ("--setenv", setting)), "--", *argv]


def measure(ctrain: str, runs: Path, place: str, launcher: str, program: str, repetitions: int) -> Figures:
    """Both commands in turns. `runs` is where ctrain keeps its runs."""
    how, argv = LAUNCHERS[launcher], PROGRAMS[program]
    bare, own, phases = [], [], []
    with allocation(how) if place == "allocation" else contextlib.nullcontext(()) as variables:
        for _ in range(WARM_UP_ROUNDS + repetitions):
            bare.append(run_timed((*srun(how), *argv), variables))
            if place == "sbatch":
                time.sleep(REST_SECONDS)
            own.append(run_timed((*ctrain_run(ctrain, runs, how), *argv), variables))
            phases.append(phases_of(own[-1], max(runs.iterdir(), key=lambda path: path.stat().st_mtime)))
    return compare(bare[WARM_UP_ROUNDS:], own[WARM_UP_ROUNDS:], phases[WARM_UP_ROUNDS:], place)


@contextlib.contextmanager
def allocation(launcher: Launcher) -> Iterator[Sequence[str]]:
    """The variables of a shell in an allocation, which lasts as long as this context."""
    wait_until_idle()
    shell = session("salloc", "--quiet", "--time=30", *size(launcher), "sh", "-c", "env; echo; exec cat")
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        lines = [line.rstrip("\n") for line in iter((process.stdout or sys.stdin).readline, "\n")]
        yield [line for line in lines if line.startswith("SLURM_")]
        process.communicate()


def run_timed(argv: Argv, variables: Sequence[str]) -> Times:
    """Run a command: with the `variables` of an allocation, or on idle nodes. The clock starts when the researcher's
    session does."""
    if not variables:
        wait_until_idle()
    start, first_output, lines = 0.0, 0.0, []
    announced = session("sh", "-c", f'echo "{READY}"; exec "$@"', "sh", *argv, variables=variables)
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


def phases_of(times: Times, run: Path) -> Phases:
    """The phases of a run by what it left: the lock of its submission, and the events of its job and of its ranks."""
    job = {(event.stage, event.what): event.time or 0.0 for event in read_job_events(run)}
    ranks = read_node_events(run)
    started = min(event.time or 0.0 for event in ranks if event.what == "started")
    ended = max(event.time or 0.0 for event in ranks if event.what == "ended")
    submitted = (run / run_files.SUBMIT_LOCK).stat().st_mtime
    begun, step, over = job["before", "started"], job["run", "started"], job["after", "ended"]
    moments = (times.start, submitted, begun, step, started, ended, over, times.end)
    return Phases(*(later - earlier for earlier, later in zip(moments, moments[1:])))


def compare(bare: list[Times], own: list[Times], phases: list[Phases], place: str) -> Figures:
    """Medians of both, in seconds; what ctrain adds, in all and itself: without the wait for a job of sbatch; and the
    medians of its phases."""

    def medians(length: Callable[[Times], float]) -> tuple[float, float]:
        return statistics.median(map(length, bare)), statistics.median(map(length, own))

    bare_end, own_end = medians(lambda times: times.end - times.start)
    bare_first, own_first = medians(lambda times: times.first_output - times.start)
    each = {field.name: statistics.median(asdict(phase)[field.name] for phase in phases) for field in fields(Phases)}
    queued = each["queue_s"] if place == "sbatch" else 0.0
    figures = {
        "bare_s": bare_end,
        "ctrain_s": own_end,
        "ratio": own_end / bare_end,
        "own_ratio": (own_end - queued) / bare_end,
        "extra_s": own_end - bare_end,
        "own_extra_s": own_end - bare_end - queued,
        "bare_first_output_s": bare_first,
        "ctrain_first_output_s": own_first,
        "first_output_extra_s": own_first - bare_first,
        "own_first_output_extra_s": own_first - bare_first - queued,
        **each,
    }
    return {name: round(value, 2) for name, value in figures.items()}


def misses(figures: Figures, until: str = "") -> bool:
    """Whether ctrain itself takes too much longer than the bare command: until the end, or the "first_output_"."""
    return figures[f"own_{until}extra_s"] > max(LIMIT_SECONDS, LIMIT_SHARE * figures[f"bare_{until}s"])


def summary(results: dict[str, Figures], repetitions: int) -> dict[str, Any]:
    """The worst of each figure that is compared, and all figures of each case."""
    compared = ("ratio", "own_ratio", "extra_s", "own_extra_s", "first_output_extra_s", "own_first_output_extra_s")
    worst = {name: max(figures[name] for figures in results.values()) for name in compared}
    limits = {"limit_s": LIMIT_SECONDS, "limit_share": LIMIT_SHARE}
    return {**worst, **limits, "repetitions": repetitions, "load": round(os.getloadavg()[1], 1), "cases": results}


def table(results: dict[str, Figures]) -> str:
    lines = [f"{'':<26}{'until':<14}{'bare':>9}{'ctrain':>9}{'more':>9}{'its own':>9}"]
    for name, figures in results.items():
        for title, end, until in ((name, "first output", "first_output_"), ("", "end", "")):
            extra = (figures[f"{until}extra_s"], figures[f"own_{until}extra_s"])
            columns = (figures[f"bare_{until}s"], figures[f"ctrain_{until}s"], *extra)
            row = f"{title:<26}{end:<14}" + "".join(f"{seconds:>7.2f} s" for seconds in columns)
            lines.append(row + ("  missed" if misses(figures, until) else ""))
        phases = ", ".join(f"{field.name[:-2]} {figures[field.name]:.2f}" for field in fields(Phases))
        lines.append(f"{'':<26}seconds of ctrain: {phases}")
    limit = f"{LIMIT_SECONDS:g} s, or {LIMIT_SHARE:.0%} of the bare command"
    return "\n".join([*lines, f"limit for what ctrain takes more itself: {limit}"])


if __name__ == "__main__":
    sys.exit(main())
