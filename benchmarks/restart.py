"""How long a training stands still after a rank was killed: ctrain --restarts, torchrun --max-restarts, ft_launcher.

    python benchmarks/restart.py [--rounds N] [--image IMAGE] [--json]

Two ranks with Gloo train the same program, plain/steps.py, in the same image on this machine; rank 1 gets SIGKILL. How
to read the result: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.errors import CtrainError
from ctrain_runtime.images import image

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "benchmarks" / "plain" / "steps.py"
STATE = Path(os.environ.get("CTRAIN_CLUSTER_DIR", "/var/lib/ctrain-cluster"))
IMAGE = STATE / "apps" / "ctrain" / "channels" / "pytorch-cpu_prod.sif"
RESILIENCY = ("nvidia-resiliency-ext==0.4.1", "nvidia-ml-py", "defusedxml")
LIMIT = 5.0  # seconds that ctrain may take beyond the program's own start
FT_LAUNCHER = "nvidia_resiliency_ext.fault_tolerance.launcher"
PER_NODE, ONE_THREAD = "--nproc-per-node=2", "OMP_NUM_THREADS=1"
RESTARTS = 5  # that each may make: of torchrun, one failed now and then on a busy machine, as its ranks did not meet
STEPS_BEFORE = 25  # the fault
PATIENCE = 180.0
CANNOT_RUN = 77  # exit code, as of tests/cluster/cluster


# Of the program, beside that it resumes from its own checkpoint.
ASKS = {
    "ctrain": "nothing, hangs are noticed by its output",
    "ctrain, torchrun": "the same",
    "torchrun": "nothing, hangs are not noticed",
    "ft_launcher": "nothing; for hangs, calls of RankMonitorClient in each step",
}


class NoStepsError(Exception):
    """A training did not go on."""


@dataclass(frozen=True)
class Restart:
    """Seconds from the fault to the next step, those of them that the new rank 0 took, or a new torchrun above it,
    those of its first start, when nothing of the image was in memory; and steps that were done twice."""

    seconds: float
    start: float
    first_start: float
    lost: int


@dataclass(frozen=True)
class Bench:
    """`library` has nvidia-resiliency-ext, if that could be installed."""

    image: image.Image
    library: Optional[Path]

    def command(self, tool: str, directory: Path) -> list[str]:
        """What trains in `directory` by a tool."""
        train = [str(PROGRAM), str(directory)]
        if tool.startswith("ctrain"):
            argv = [
                str(Path(sys.executable).with_name("ctrain")),
                "run",
                "--site=local",
                "--preflight=off",
                "--name=run",
            ]
            argv += [
                f"--image={self.image.path}",
                "--ranks-per-node=2",
                f"--restarts={RESTARTS}",
                f"--runs={directory}",
            ]
            argv += [
                f"--env={ONE_THREAD}",
                f"--mount={directory}:{directory}",
                f"--mount={PROGRAM.parent}:{PROGRAM.parent}:ro",
            ]
            alone = tool == "ctrain"
            return [*argv, *(["--launcher=env", "--", "python"] if alone else ["--", "torchrun", PER_NODE]), *train]
        engine, exec_, *rest = self.image.plain_argv
        as_root = ["--userns"] if os.geteuid() == 0 else []  # as ctrain does
        argv = [engine, exec_, *as_root, "--cleanenv", "--env", ONE_THREAD, "--bind", f"{directory},{PROGRAM.parent}"]
        if tool == "ft_launcher":
            argv += ["--bind", f"{self.library}:/library", "--env", "PYTHONPATH=/library"]
        starts = ["torchrun"] if tool == "torchrun" else ["python", "-m", FT_LAUNCHER]
        return [*argv, *rest, *starts, "--standalone", PER_NODE, f"--max-restarts={RESTARTS}", *train]

    def measure(self, tool: str) -> Optional[Restart]:
        """None if there was no other step."""
        with tempfile.TemporaryDirectory(prefix="ctrain-restart-", dir="/var/tmp") as name:
            directory = Path(name)
            with (directory / "output").open("wb") as output:
                argv = self.command(tool, directory)
                process = subprocess.Popen(argv, stdout=output, stderr=output, start_new_session=True)
            try:
                return _restart(process, directory, "command" if tool == "ctrain, torchrun" else "born")
            except NoStepsError as error:
                print(
                    f"restart.py: {tool}: {error}\n{(directory / 'output').read_text(errors='replace')[-2000:]}",
                    file=sys.stderr,
                )
                return None
            finally:
                _end(process)


def _restart(process: subprocess.Popen[bytes], directory: Path, began: str) -> Restart:
    wait_for(lambda: len(steps(directory)) >= STEPS_BEFORE, process)
    first, killed = steps(directory)[0], time.time()
    os.kill(int((directory / "pid.1").read_text()), signal.SIGKILL)
    wait_for(lambda: steps(directory)[-1]["born"] != first["born"], process)
    done = [step for step in steps(directory) if step["born"] == first["born"]]
    again = next(step for step in steps(directory) if step["born"] != first["born"])
    seconds, lost = again["time"] - killed, done[-1]["step"] - again["step"] + 1
    return Restart(seconds, again["time"] - again[began], first["time"] - first[began], lost)


def steps(directory: Path) -> list[dict[str, Any]]:
    """What rank 0 has written; the last line may be half-written."""
    path = directory / "steps.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None:
            raise NoStepsError(f"ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise NoStepsError(f"no step in {PATIENCE:.0f} s")
        time.sleep(0.02)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Starters pass SIGTERM on, and ctrain ends a run; what is left of it is killed."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def install(directory: Path) -> Optional[Path]:
    """nvidia-resiliency-ext, without its dependencies' choice of torch; None if it is not to be had."""
    target = directory / "library"
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", f"--target={target}"]
    done = subprocess.run([*argv, *RESILIENCY], capture_output=True, text=True)
    if done.returncode:
        print(f"ft_launcher is not measured: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return None if done.returncode else target


def summary(rounds: list[dict[str, Optional[Restart]]]) -> dict[str, Any]:
    """Medians of each tool, of the rounds in which the training went on."""
    figures = {}
    for tool in rounds[0]:
        done = [one for one in (row[tool] for row in rounds) if one]
        figures[tool] = {"failures": len(rounds) - len(done), "asks": ASKS[tool]}
        if done:
            middle = {
                name: statistics.median(getattr(one, name) for one in done)
                for name in ("seconds", "start", "first_start", "lost")
            }
            middle["beyond_start"] = middle["seconds"] - middle["start"]
            figures[tool] |= {name: round(number, 2) for name, number in middle.items()}
    return {"tools": figures, "limit_beyond_start": LIMIT, "rounds": len(rounds), "load": round(os.getloadavg()[1], 1)}


def table(result: dict[str, Any]) -> str:
    columns = {
        "to the next step": "seconds",
        "own start": "start",
        "the rest": "beyond_start",
        "first start": "first_start",
        "steps twice": "lost",
        "failures": "failures",
    }
    lines = [f"{'seconds':<18}{''.join(f'{name:>18}' for name in columns)}  asks of the program"]
    for tool, row in result["tools"].items():
        numbers = "".join(f"{row.get(name, '-'):>18}" for name in columns.values())
        lines.append(f"{tool:<18}{numbers}  {row['asks']}")
    return "\n".join([*lines, f"load of the machine: {result['load']}"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures how long a training stands still after a rank was killed.")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of all tools, in turns (default: 3)")
    parser.add_argument("--image", default=str(IMAGE), metavar="SIF", help="default: that of the test cluster")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be a positive integer")
    try:
        found = image.find((args.image,), [], platform.machine())
    except CtrainError as error:
        print(f"restart.py: {error.message}. Pass --image SIF", file=sys.stderr)
        return CANNOT_RUN
    with tempfile.TemporaryDirectory(prefix="ctrain-resiliency-", dir="/var/tmp") as scratch:
        bench = Bench(found, install(Path(scratch)))
        tools = [tool for tool in ASKS if bench.library or tool != "ft_launcher"]
        result = summary([{tool: bench.measure(tool) for tool in tools} for _ in range(args.rounds)])
    print(table(result))
    if args.json:
        print(json.dumps(result))
    return 0 if result["tools"]["ctrain"].get("beyond_start", LIMIT + 1) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
