"""The programs in Keras on two nodes: only with CTRAIN_KERAS_STORE, a store that has the image tensorflow-cpu.

CI builds no such image: it takes a quarter of an hour.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from samples.cluster import Cluster, until

STORE = os.environ.get("CTRAIN_KERAS_STORE", "")
pytestmark = pytest.mark.skipif(not STORE, reason="needs a store with the image tensorflow-cpu: CTRAIN_KERAS_STORE")
# All nodes share the machine's two cores: more threads would only wait for each other.
RUN = ("ctrain", "run", "--nodes", "2", "--preflight", "off", "--env", "OMP_NUM_THREADS=1")


def lines(run: Path) -> list[dict[str, Any]]:
    """Those of metrics.jsonl; the last one may be half-written."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def losses(run: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines(run) if "loss" in line}


def test_digits_are_learnt(cluster: Cluster) -> None:
    data = ("--data", str(cluster.digits), "--image", "tensorflow-cpu")
    program = ("python", "/opt/ctrain/examples/digits/train_keras.py")
    done = cluster.run(*RUN, *data, "--name", "digits", "--", *program, CTRAIN_STORE=STORE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert cluster.record("digits")["world_size"] == 4
    epochs = lines(cluster.runs("digits"))
    assert [line["epoch"] for line in epochs] == list(range(1, 11))
    assert epochs[-1]["accuracy"] > 0.95
    assert f"epoch 10/10  loss {epochs[-1]['loss']:.3f}  accuracy" in done.stdout


def test_resnet50_goes_on_after_a_cancelled_and_a_killed_run(cluster: Cluster) -> None:
    """The last run trains the steps after the last checkpoint again, with the same losses."""
    argv = [*RUN, "resnet50_keras", "--data", str(cluster.digits)]
    options = ["--", "--epochs", "4", "--checkpoint-every", "5"]
    cancelled, killed, resumed = map(cluster.runs, ("cancelled", "killed", "resumed"))
    first = cluster.start(*argv, "--name", "cancelled", *options, CTRAIN_STORE=STORE)
    until(lambda: max(losses(cancelled), default=0) >= 3, "step 3", 200)
    assert cluster.run("ctrain", "cancel", "cancelled").returncode == 0
    output, _ = first.communicate(timeout=100)
    last = max(losses(cancelled))
    assert f"terminated after step {last} of 44; a checkpoint was saved" in output, output

    resume = ["--resume", str(cancelled)]
    second = cluster.start(*argv, "--name", "killed", *resume, *options, CTRAIN_STORE=STORE)
    until(lambda: max(losses(killed), default=0) >= 17, "step 17", 200)
    found = subprocess.run(["pgrep", "-f", "python train.py --epochs 4"], capture_output=True, text=True)
    ranks = [pid for pid in found.stdout.split() if Path(f"/proc/{pid}/comm").read_text().startswith("python")]
    assert len(ranks) == 4, "a process per rank"
    subprocess.run(["kill", "-KILL", ranks[2]], check=True)
    output, _ = second.communicate(timeout=100)
    assert second.returncode == 137 and "failed first" in output, output
    assert min(losses(killed)) == last + 1

    third = cluster.run(*argv, "--name", "resumed", "--resume", str(killed), *options, CTRAIN_STORE=STORE, timeout=500)
    assert third.returncode == 0, third.stdout + third.stderr
    assert min(losses(resumed)) % 5 == 1 and max(losses(resumed)) == 44
    both = losses(killed).keys() & losses(resumed).keys()
    assert both, "the steps after the last checkpoint"
    expected = {step: losses(killed)[step] for step in both}
    assert {step: losses(resumed)[step] for step in both} == pytest.approx(expected, rel=1e-5)
    validations = [line for line in lines(resumed) if "val_accuracy" in line]
    assert validations[-1]["val_accuracy"] > 0.5, "chance is 0.1"
    assert validations[-1]["val_images"] == len(list((cluster.digits / "val").glob("*/*")))
    assert "epoch 4/4  loss" in third.stdout
