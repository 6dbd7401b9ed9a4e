"""examples/megatron on two real nodes, but without GPUs: samples/gpu_on_cpu.py stands in for them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from samples.cluster import Cluster
from samples.losses import check_losses

STAND_IN = Path(__file__).parents[1] / "samples" / "gpu_on_cpu.py"
PROGRAM = "/opt/ctrain/examples/megatron/train.py"
OPTIONS = ("--image", "pytorch-cpu", "--preflight", "off", "--launcher", "env", "--env", "OMP_NUM_THREADS=1")
SETTINGS = {"steps": 20, "save-every": 10, "warmup": 4, "lr": 0.003, "batch": 16, "micro-batch": 4}
SETTINGS |= {"layers": 2, "heads": 4, "width": 64, "context": 32}
# As in test_equality.py: only the order of additions differs. Seen: 1.4e-7. Biases that decay showed as 5e-4.
BOUND = 2e-6


def losses(cluster: Cluster, run: str) -> list[float]:
    return [json.loads(line)["loss"] for line in (cluster.runs(run) / "metrics.jsonl").read_text().splitlines()]


def train(cluster: Cluster, name: str, ranks_per_node: int, *words: str, resume: str = "") -> list[float]:
    """The losses of megatron-core on two nodes."""
    settings = [word for key, value in SETTINGS.items() for word in (f"--{key}", str(value))]
    size = ["--nodes", "2", "--ranks-per-node", str(ranks_per_node), *(["--resume", resume] if resume else [])]
    program = ["python", STAND_IN.name, PROGRAM, *settings, *words]
    done = cluster.run("ctrain", "run", *OPTIONS, *size, "--name", name, "--", *program)
    assert done.returncode == 0, done.stdout + done.stderr
    return losses(cluster, name)


def difference(curve: list[float], reference: list[float]) -> float:
    assert curve and len(curve) <= len(reference)
    return max(abs(a / b - 1) for a, b in zip(curve, reference[-len(curve) :]))


def test_every_layout_has_the_loss_curve_of_gpt(cluster: Cluster) -> None:
    cluster.write(STAND_IN.name, STAND_IN.read_text())
    settings = [f"{key.replace('-', '_')}={value}" for key, value in SETTINGS.items()]
    one = ["--nodes", "1", "--ranks-per-node", "1", "--name", "gpt"]
    done = cluster.run("ctrain", "run", "gpt", *OPTIONS, *one, "--", "strategy=single", "sample=0", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = losses(cluster, "gpt")
    assert reference[-1] < reference[0] - 0.5, "it learns"
    check_losses("gpt", reference)
    whole = train(cluster, "tp-and-pp", 2, "--tp", "2", "--pp", "2")
    assert len(whole) == 20 and difference(whole, reference) < BOUND
    run = cluster.runs("tp-and-pp")
    assert {path.name for path in (run / "checkpoint").iterdir()} == {"step-00000010", "step-00000020"}
    subprocess.run(["rm", "-r", str(run / "checkpoint" / "step-00000020")], check=True)
    resumed = train(cluster, "data-parallel", 1, resume=str(run))
    assert len(resumed) == 10 and difference(resumed, reference) < BOUND


def test_without_a_gpu_another_example_is_named(cluster: Cluster) -> None:
    done = cluster.run("ctrain", "run", "megatron", *OPTIONS, "--nodes", "1", "--ranks-per-node", "1", "--name", "none")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "train.py: megatron-core computes on GPUs only; on CPUs run examples/gpt" in done.stdout
