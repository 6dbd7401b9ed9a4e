"""A training that loses a rank, then a node, and goes on in the same job of the real Slurm, with a spare node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.cluster import ENTRY, Cluster, until

# All nodes share the machine's two cores: more threads would only wait for each other.
RUN = ("ctrain", "run", "gpt", "--nodes", "2", "--ranks-per-node", "1", "--image", "pytorch-cpu", "--preflight", "off")
STEPS, SAVED_EVERY = 250, 50
SETTINGS = (f"steps={STEPS}", f"save_every={SAVED_EVERY}", "layers=2", "width=64", "context=32", "batch=16")
SETTINGS += ("sample=0", "strategy=ddp")
BOUND = 2e-6  # as in test_equality.py


@pytest.fixture
def mended(four_nodes: Cluster) -> Iterator[Cluster]:
    """The cluster, whose node02 is up again after the test."""
    yield four_nodes
    subprocess.run([ENTRY, "start-node", "node02"], check=True)


def losses(run: Path) -> list[tuple[int, float]]:
    """(step, loss) in the order of their writing; the last line may be half-written."""
    text = (run / "metrics.jsonl").read_text() if (run / "metrics.jsonl").exists() else ""
    return [(line["step"], line["loss"]) for line in map(json.loads, text[: text.rfind("\n") + 1].splitlines())]


def test_a_training_outlives_a_rank_and_a_node(mended: Cluster) -> None:
    cluster = mended
    argv = [*RUN, "--env", "OMP_NUM_THREADS=1", "--restarts", "3", "--spare-nodes", "1", "--name", "outlives"]
    run = cluster.runs("outlives")
    started = cluster.start(*argv, "--", *SETTINGS)
    until(lambda: max(losses(run), default=(0, 0.0))[0] >= 55, "step 55", 200)
    found = subprocess.run(["pgrep", "-f", f"python train.py steps={STEPS}"], capture_output=True, text=True)
    ranks = [pid for pid in found.stdout.split() if Path(f"/proc/{pid}/comm").read_text().startswith("python")]
    assert len(ranks) == 2, "a process per rank"
    subprocess.run(["kill", "-KILL", ranks[1]], check=True)
    until(lambda: max(losses(run))[0] >= 155, "step 155", 200)
    subprocess.run([ENTRY, "kill-node", "node02"], check=True)
    output, _ = started.communicate(timeout=300)  # Slurm notices after its SlurmdTimeout
    assert started.returncode == 0, output
    assert "; restarting from the last checkpoint (1 of 3)\n" in output, output
    assert "; restarting from the last checkpoint, without node02 (2 of 3)\n" in output, output
    assert ", with 2 restarts" in output and "\nworld: joined 2/2\n" in output, output
    record = cluster.record("outlives")
    assert [restart["attempt"] for restart in record["restarts"]] == [1, 2]
    assert (record["exit"]["ending"], len(record["attempts"])) == ("completed", 1), "in one job"
    curve = losses(run)
    assert {step for step, _ in curve} == set(range(1, STEPS + 1))
    again = [[loss for at, loss in curve if at == step] for step in range(1, STEPS + 1)]
    repeated = [values for values in again if len(values) > 1]
    assert len(repeated) >= 5, "the steps since each checkpoint"
    for values in repeated:
        assert values == pytest.approx([values[0]] * len(values), rel=BOUND)
