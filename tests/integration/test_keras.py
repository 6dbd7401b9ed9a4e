"""The programs in Keras, on two ranks of this machine in the image tensorflow-cpu, which the cluster's store lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cache.cache_root import default_root
from samples.cluster import Done, until
from samples.long_mode import LONG
from samples.losses import check_losses

CHECKOUT = Path(__file__).parents[2]
CTRAIN = str(CHECKOUT / ".venv" / "bin" / "ctrain")
STOPPED = CHECKOUT / "tests" / "samples" / "stopped.py"
EXIT_SAVED = 85
EVERY = 3  # steps between checkpoints of ResNet-50: it is killed after the first of them and before the second


@dataclass(frozen=True)
class Keras:
    """`data` is scikit-learn's digits."""

    image: Path
    data: Path
    runs: Path

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        options = ("--site", "local", "--ranks-per-node", "2", "--gpus-per-node", "0", "--image", str(self.image))
        where = ("--data", str(self.data), "--runs", str(self.runs), "--name", name)
        return subprocess.Popen(
            [CTRAIN, "run", *options, *where, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # more threads than cores would wait for each other
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, name: str, *arguments: str) -> Done:
        process = self.start(name, *arguments)
        output, _ = process.communicate(timeout=600)
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Those of metrics.jsonl; the last one may be half-written."""
        path = self.runs / name / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def losses(self, name: str) -> dict[int, float]:
        return {line["step"]: line["loss"] for line in self.lines(name) if "loss" in line}


@pytest.fixture(scope="module")
def keras(tmp_path_factory: pytest.TempPathFactory) -> Keras:
    """The image takes minutes to build, and stays in the cache."""
    runs = tmp_path_factory.mktemp("keras")
    subprocess.run([CTRAIN, "build", "tensorflow-cpu"], check=True)
    (image,) = (default_root() / "images").glob("tensorflow-cpu_*-h.sif")
    prepare = CHECKOUT / "examples" / "resnet50" / "prepare_digits.py"
    data = tmp_path_factory.mktemp("data") / "digits"
    subprocess.run([sys.executable, str(prepare), str(data)], check=True)
    return Keras(image, data, runs)


def test_digits_are_learnt_and_resumed_alike(keras: Keras) -> None:
    """By day, alike means the first losses of a run that nobody has stopped."""
    program = ("python", "/opt/ctrain/examples/digits/train_keras.py")
    # A signal to one rank: all leave with what they have saved after the epoch, and the run goes on from there.
    signalled = ("--mount", str(STOPPED.parent), "--", "python", str(STOPPED), program[1], "3")
    done = keras.run("stopped", "--launcher", "mpi", *signalled)
    assert done.returncode == EXIT_SAVED, done.stdout
    stopped = keras.lines("stopped")
    assert [line["epoch"] for line in stopped] == [1, 2, 3]
    latest = (keras.runs / "stopped" / "checkpoint" / "checkpoint").read_text()
    assert f'model_checkpoint_path: "step-{stopped[-1]["step"]}"' in latest
    done = keras.run("again", "--launcher", "mpi", "--resume", str(keras.runs / "stopped"), "--", *program)
    assert done.returncode == 0, done.stdout
    again = keras.lines("again")
    assert [line["epoch"] for line in again] == list(range(4, 11))
    assert again[-1]["accuracy"] > 0.95
    assert f"epoch 10/10  loss {again[-1]['loss']:.3f}  accuracy" in done.stdout
    check_losses("digits_keras", [line["loss"] for line in (*stopped, again[0])])
    if LONG:
        done = keras.run("digits", "--launcher", "mpi", "--", *program)
        assert done.returncode == 0, done.stdout
        whole = keras.lines("digits")
        assert [line["epoch"] for line in whole] == list(range(1, 11))
        assert again[-1]["accuracy"] == whole[-1]["accuracy"]
        losses = [line["loss"] for line in (*stopped, *again)]
        assert losses == pytest.approx([line["loss"] for line in whole], rel=1e-5)


def test_resnet50_is_started_and_refuses_a_batch_that_its_data_do_not_fill(keras: Keras) -> None:
    """Its ranks meet, and list the data; to build the network takes each of them half a minute."""
    done = keras.run("refused", "resnet50_keras", "--", "--batch-size", "9999")
    assert done.returncode == 2, done.stdout
    assert "not enough for a step of 2 x 9999; pass a smaller --batch-size" in done.stdout


def check_cancelled(keras: Keras, name: str, run: subprocess.Popen[str]) -> dict[int, float]:
    """Cancel a run, which leaves a checkpoint of its last step. Its losses."""
    assert subprocess.run([CTRAIN, "cancel", name, "--runs", str(keras.runs)]).returncode == 0
    output, _ = run.communicate(timeout=100)
    losses = keras.losses(name)
    assert f"asked to end after step {max(losses)} of 44; a checkpoint was saved" in output, output
    latest = (keras.runs / name / "checkpoint" / "checkpoint").read_text()
    assert f'model_checkpoint_path: "step-{max(losses)}"' in latest
    return losses


@pytest.mark.skipif(not LONG, reason="by day, digits are stopped and go on from a checkpoint of Keras: CTRAIN_LONG=1")
def test_resnet50_goes_on_after_a_killed_and_a_cancelled_run(keras: Keras) -> None:
    """After the kill, the steps since the last checkpoint are trained again, with the same losses."""
    job, options = "resnet50_keras", ("--", "--epochs", "2", "--checkpoint-every", str(EVERY))
    first = keras.start("killed", job, *options)
    until(lambda: max(keras.losses("killed"), default=0) > EVERY, "a step after a checkpoint", 600)
    found = subprocess.run(["pgrep", "-f", "python train.py --epochs 2"], capture_output=True, text=True)
    ranks = [pid for pid in found.stdout.split() if Path(f"/proc/{pid}/comm").read_text().startswith("python")]
    assert len(ranks) == 2, "a process per rank"
    subprocess.run(["kill", "-KILL", ranks[1]], check=True)
    output, _ = first.communicate(timeout=100)
    assert first.returncode == 137 and "failed first" in output, output
    killed = keras.losses("killed")
    # With AVX2 in place of AVX-512 (ONEDNN_MAX_CPU_ISA) step 3 differs by 9e-5, step 4 by 3e-2; without oneDNN
    # (TF_ENABLE_ONEDNN_OPTS=0) step 2 by 2e-4, step 3 by 3e-2.
    check_losses("resnet50_keras", [killed[step] for step in (1, 2)])

    second = keras.start("cancelled", job, "--resume", str(keras.runs / "killed"), *options)
    until(lambda: max(keras.losses("cancelled"), default=0) > max(killed), "the steps after the kill", 600)
    cancelled = check_cancelled(keras, "cancelled", second)
    again = killed.keys() & cancelled.keys()
    assert again and min(cancelled) % EVERY == 1, "the steps after the last checkpoint"
    expected = {step: killed[step] for step in again}
    assert {step: cancelled[step] for step in again} == pytest.approx(expected, rel=1e-5)
    # The run that was cancelled goes on from its last step, and learns.
    third = keras.run("resumed", job, "--resume", str(keras.runs / "cancelled"), *options)
    assert third.returncode == 0, third.stdout
    resumed = keras.losses("resumed")
    assert (min(resumed), max(resumed)) == (max(cancelled) + 1, 44)
    validations = [line for line in keras.lines("resumed") if "val_accuracy" in line]
    assert validations[-1]["val_accuracy"] > 0.5, "chance is 0.1"
    assert validations[-1]["val_images"] == len(list((keras.data / "val").glob("*/*")))
    assert "epoch 2/2  loss" in third.stdout
