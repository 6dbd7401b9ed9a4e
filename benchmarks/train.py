"""What the examples train per second by each strategy, beside the shortest plain programs that train the same.

    python benchmarks/train.py [--case TEXT ...] [--size small|marks] [--ranks N] [--rounds N] [--image IMAGE] [--json]

All runs on this machine in one image: the examples of this checkout by `ctrain run --site local`, the programs of
plain/ by `apptainer exec`. How to read the result: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime import gpus
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.estimate import formulas
from ctrain_runtime.estimate.hardware import find_gpus
from ctrain_runtime.images import image

Figures = dict[str, Optional[float]]

ROOT = Path(__file__).resolve().parents[1]
PLAIN = ROOT / "benchmarks" / "plain"
STATE = Path(os.environ.get("CTRAIN_CLUSTER_DIR", "/var/lib/ctrain-cluster"))
IMAGE = STATE / "apps" / "ctrain" / "channels" / "pytorch-cpu_prod.sif"
LEAST_RATIO = 0.95  # of an example's speed to that of the plain program
STEPS, WARM_UP_STEPS = 14, 3
ONE_THREAD = "OMP_NUM_THREADS=1"  # of a rank: on CPUs, it is a core
CANNOT_RUN = 77  # exit code, as of tests/cluster/cluster
SIZES: dict[str, dict[str, dict[str, Any]]] = {  # settings as of both programs
    "gpt": {
        "small": {"layers": 4, "heads": 4, "width": 256, "context": 64, "micro_batch": 2, "bf16": "false"},
        "marks": {"layers": 24, "heads": 16, "width": 2048, "context": 1024, "micro_batch": 8, "bf16": "true"},
    },
    "resnet50": {
        "small": {"image-size": 64, "batch-size": 16, "workers": 1},
        "marks": {"image-size": 224, "batch-size": 256, "workers": 12},
    },
}
MICRO_BATCHES = 4  # per rank, where all have the whole model
CHARACTERS = 100  # in the vocabulary, about
# Published for one GPU: ResNet-50 with mixed precision and JPEG files, a GPT of 1.3 to 1.6e9 parameters
IMAGES_PER_SECOND, MFU = {"A100": 2470, "H100": 2790, "H200": 3079}, {"H100": 0.42}
# torchvision's ResNet-50: 4.09e9 multiplications and additions per image of 224 x 224, and twice as many backwards
OPERATIONS_PER_PIXEL = 3 * 2 * 4.09e9 / 224**2


@dataclass(frozen=True)
class Case:
    """`ranks` train an example by a strategy; one that trains alone is compared with the plain program."""

    example: str
    strategy: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.example} {self.strategy} {self.ranks}"


@dataclass(frozen=True)
class Bench:
    """The size of trainings, and how many ranks train together. `pictures` becomes an ImageFolder tree."""

    image: image.Image
    pictures: Path
    size: str
    ranks: int

    def settings(self, case: Case) -> dict[str, Any]:
        """Of the example, and of the plain program, which ignores those that it lacks."""
        settings, half = {**SIZES[case.example][self.size], "strategy": case.strategy}, STEPS // 2
        if case.example == "resnet50":  # where the ranks share an epoch
            return {**settings, "augment": "full", "epochs": case.ranks, "checkpoint-every": half}
        batch = MICRO_BATCHES * self.ranks * settings["micro_batch"]
        return {**settings, "batch": batch, "steps": STEPS, "save_every": half, "sample": 0}

    def work(self, case: Case) -> tuple[int, float]:
        """Tokens or images of a step, and floating-point operations that the model needs for each."""
        settings = self.settings(case)
        if case.example == "resnet50":
            return settings["batch-size"] * case.ranks, OPERATIONS_PER_PIXEL * settings["image-size"] ** 2
        shape = {"l": settings["layers"], "h": settings["width"], "s": settings["context"], "V": CHARACTERS}
        of_gpt2 = {"a": 1, "k": 1, "j": 2, "i": 4 * settings["width"], "nb": 0, "Ea": 0, "ha": settings["width"]}
        operations = formulas.evaluate(formulas.SIZES, {**shape, **of_gpt2, "B": 1, "R": 0, "Ra": 0, "Rs": 0})["M"]
        return settings["batch"] * settings["context"], operations / settings["context"]

    def run_plain(self, program: str, *words: str) -> list[dict[str, Any]]:
        """The objects that a program of plain/ prints."""
        engine, exec_, *rest = self.image.plain_argv
        mounts = f"{PLAIN},{self.pictures}:/data,{ROOT}/examples:/opt/ctrain/examples:ro"
        as_root = ["--userns"] if os.geteuid() == 0 else []  # as ctrain does
        argv = [engine, exec_, *as_root, "--cleanenv", "--env", ONE_THREAD, "--bind", mounts, *rest]
        return list(map(json.loads, output([*argv, "python3", str(PLAIN / program), *words]).splitlines()))

    def run_example(self, case: Case, words: list[str]) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that are steps."""
        argv = [str(Path(sys.executable).with_name("ctrain")), "run", case.example, "--site=local", "--preflight=off"]
        argv += [f"--image={self.image.path}", f"--mount={ROOT}/examples:/opt/ctrain/examples:ro"]
        argv += [f"--ranks-per-node={case.ranks}", f"--env={ONE_THREAD}", "--name=run"]
        argv += [f"--data={self.pictures}"] if case.example == "resnet50" else []
        with tempfile.TemporaryDirectory(dir=self.pictures.parent) as runs:
            output([*argv, f"--runs={runs}", "--", *words])
            lines = Path(runs, "run", "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if "seconds" in line]

    def measure(self, case: Case, rounds: int) -> tuple[list[Any], list[Any]]:
        """The steps of each round of the example, and of the plain program: they take turns."""
        words, own, plain = [f"--{key}={value}" for key, value in self.settings(case).items()], [], []
        for _ in range(rounds if case.ranks == 1 else 1):
            own.append(self.run_example(case, words))
            if case.ranks == 1:
                plain.append(self.run_plain(f"{case.example}.py", *words))
        return own, plain


def output(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"train.py: exit code {done.returncode}: {' '.join(argv)}\n{done.stdout}{done.stderr}")
    return done.stdout


def cases(ranks: int) -> list[Case]:
    together = [(name, ranks) for name in ("ddp", "horovod", "zero1", "zero2", "zero3", "fsdp", "tp", "pp")]
    gpt = [Case("gpt", *choice) for choice in (("single", 1), *together, ("3d", max(4, ranks)))]
    return [*gpt, *(Case("resnet50", name, count) for name in ("horovod", "ddp") for count in (1, ranks))]


def step_seconds(steps: list[Any]) -> float:
    """A quarter of the steps take less: what else the machine does slows some of them, often most."""
    return statistics.quantiles([step["seconds"] for step in steps[WARM_UP_STEPS:]], n=4, method="inclusive")[0]


def compare(own: list[Any], plain: list[Any], units: int, operations: float, peak: Optional[float]) -> Figures:
    """The fastest round of each. `peak`: operations per second of all devices, if they are known."""
    steps = min(own, key=step_seconds)
    speed, reference = units / step_seconds(steps), units / min(map(step_seconds, plain)) if plain else None
    outside = [step["seconds_outside_compute"] for step in steps[WARM_UP_STEPS:]]
    return {
        "per_second": round(speed, 1),
        "mfu": round(speed * operations / peak, 3) if peak else None,
        "outside_ms": round(1000 * statistics.median(outside), 1),
        "checkpoint_ms": round(1000 * (max(outside) - statistics.median(outside))),
        "memory_mb": round(steps[-1].get("memory", steps[-1]["host_memory"]) / 1e6),
        "plain": round(reference, 1) if reference else None,
        "ratio": round(speed / reference, 2) if reference else None,
    }


def share_of_mark(case: Case, size: str, figures: Figures, gpu: str) -> Optional[float]:
    """What one GPU reaches of the figure that is published for its type; None if none is, or not for this size."""
    name, marks = ("mfu", MFU) if case.example == "gpt" else ("per_second", IMAGES_PER_SECOND)
    reached, mark = figures[name], marks.get(gpus.identify(gpu).model)
    return round(reached / mark, 2) if size == "marks" and case.ranks == 1 and mark and reached else None


def misses(figures: Figures) -> bool:
    limits = {"ratio": LEAST_RATIO, "of_mark": 1.0}
    return any(value is not None and value < limits[name] for name, value in figures.items() if name in limits)


def peak_of(machine: dict[str, Any]) -> Optional[float]:
    """Operations per second: a core's as measured, a GPU's in bfloat16 by its data sheet; None for an unknown GPU."""
    try:
        return find_gpus(machine["gpu"])[0].bf16 * 1e12 if machine["gpu"] else float(machine["operations_per_second"])
    except CtrainError:
        return None


def report(bench: Bench, chosen: list[Case], rounds: int) -> dict[str, Any]:
    """Prints a line per case, as soon as it is known."""
    (machine,) = bench.run_plain("machine.py", str(STEPS * SIZES["resnet50"][bench.size]["batch-size"]))
    peak, alone, results = peak_of(machine), dict[str, float](), dict[str, Figures]()
    for case in chosen:
        devices = min(case.ranks, machine["devices"])
        figures = compare(*bench.measure(case, rounds), *bench.work(case), peak and peak * devices)
        speed = figures["per_second"] or 0
        one = alone.setdefault(case.example, speed) if case.ranks == 1 else alone.get(case.example)
        figures["scaling"] = round(speed / one / devices, 2) if one else None
        figures["of_mark"] = share_of_mark(case, bench.size, figures, machine["gpu"])
        if not results:
            print(" " * 20 + "".join(f"{name:>14}" for name in figures))
        columns = ["-" if value is None else f"{value:,}" for value in figures.values()]
        missed = "  missed" if misses(figures) else ""
        print(f"{case!s:<20}" + "".join(f"{column:>14}" for column in columns) + missed, flush=True)
        results[str(case)] = figures
    marks = IMAGES_PER_SECOND.values()
    cores = {str(mark): round(mark / machine["images_per_second"], 1) for mark in marks}
    feeds = ", ".join(f"{count} cores feed {mark} images/s" for mark, count in cores.items())
    print(f"a core decodes and augments {machine['images_per_second']:.0f} images/s: {feeds}")
    load = round(os.getloadavg()[1], 1)
    return {"least_ratio": LEAST_RATIO, "load": load, "machine": machine, "cores_to_feed": cores, "cases": results}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the training of the examples beside plain programs.")
    parser.add_argument("--case", action="append", metavar="TEXT", help="only cases with it in their name; repeatable")
    parser.add_argument("--size", choices=SIZES["gpt"], default="small", help="marks: as in published figures of GPUs")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="that train together (default: 2)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="of each comparison (default: 2)")
    parser.add_argument("--image", default=str(IMAGE), metavar="SIF", help="default: that of the test cluster")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    if args.ranks < 2 or args.rounds < 1:
        parser.error("--ranks must be at least 2, --rounds a positive integer")
    chosen = [case for case in cases(args.ranks) if any(text in str(case) for text in args.case or [""])]
    if not chosen:
        parser.error(f"no such case. Cases: {', '.join(map(str, cases(args.ranks)))}")
    try:
        found = image.find((args.image,), [], platform.machine())
    except CtrainError as error:
        print(f"train.py: {error.message}. Pass --image SIF", file=sys.stderr)
        return CANNOT_RUN
    with tempfile.TemporaryDirectory(prefix="ctrain-train-", dir="/var/tmp") as directory:
        pictures = Path(directory) / "pictures"
        pictures.mkdir()
        summary = report(Bench(found, pictures, args.size, args.ranks), chosen, args.rounds)
    if args.json:
        print(json.dumps(summary))
    return 1 if any(map(misses, summary["cases"].values())) else 0


if __name__ == "__main__":
    sys.exit(main())
