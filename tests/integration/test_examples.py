"""The packaged jobs on two nodes, with the image's PyTorch and real data: each trains to a sensible result."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samples.cluster import Cluster, Done
from samples.long_mode import LONG
from samples.losses import check_losses

ONE_PER_NODE = ("--ranks-per-node", "1")
ONE_OF_TWO = ("--batch-size", "32", "--lr", "0.02")
TWO_RANKS_IN_ONE = ("--batch-size", "64", "--lr", "0.04")  # twice that
EXIT_SAVED = 85
FINETUNE = "/opt/ctrain/examples/finetune/train.py"
STOPPED = Path(__file__).parents[1] / "samples" / "stopped.py"
IN_FLOAT64 = Path(__file__).parents[1] / "samples" / "in_float64.py"
PEFT = "peft==0.21.2"
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")  # the nodes share the cores of one machine


def train(cluster: Cluster, name: str, *argv: str) -> tuple[Done, Path, list[dict[str, Any]]]:
    """Run a job on two nodes; its end, its run directory, and the lines of its metrics."""
    done = cluster.run("ctrain", "run", "--nodes", "2", "--preflight", "off", *ONE_THREAD, "--name", name, *argv)
    assert done.returncode == 0, done.stdout + done.stderr
    run = cluster.runs(name)
    return done, run, [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(lines: list[dict[str, Any]], **values: Any) -> list[float]:
    """Of the lines with these values."""
    return [line["loss"] for line in lines if "loss" in line and values.items() <= line.items()]


@pytest.fixture(scope="module")
def dozens(cluster: Cluster) -> Path:
    """The digits, as many to train on as 1 to 4 ranks can share evenly: then a step's mean over ranks is the same
    for all of them."""
    directory = cluster.home / "dozens"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(cluster.digits, directory)
    pictures = sorted((directory / "train").glob("*/*"))
    for picture in pictures[len(pictures) // 12 * 12 :]:
        picture.unlink()
    return directory


def test_selftest_checks_each_library_and_says_what_it_leaves_out(cluster: Cluster) -> None:
    done, run, steps = train(cluster, "selftest", "selftest", *ONE_PER_NODE)
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert [rows[name] for name in ("all-reduce", "reduce-scatter", "all-to-all")] == [["ok"] * 3] * 3, done.stdout
    assert [rows[name] for name in ("reduce", "scatter")] == [["ok", "ok", "-"]] * 2
    assert "node02: rank 1 cpu" in done.stdout and "skipped" not in done.stdout
    table = [line for line in done.stdout.splitlines() if " ok " in line or "horovod (" in line]
    assert len(table) == 8 and all(line == line.rstrip() for line in table)
    assert steps[-1]["loss"] < steps[0]["loss"] / 4
    check_losses("selftest", losses(steps)[:5])
    assert "html" in (run / "profile.html").read_text()[:100]


def test_selftest_passes_under_mpirun(cluster: Cluster) -> None:
    """It takes ranks that do not end MPI for failed ones, which Slurm does not."""
    train(cluster, "here", "selftest", "--site", "local", *ONE_PER_NODE)


def test_digits_are_learnt_by_horovod_by_one_rank_alike_and_resumed_alike_by_ddp(
    cluster: Cluster, dozens: Path
) -> None:
    data = (*ONE_PER_NODE, "--data", str(dozens))
    _, horovod, epochs = train(cluster, "horovod", "digits", *data, "--", *ONE_OF_TWO)
    assert [line["epoch"] for line in epochs] == list(range(1, 11))
    assert epochs[-1]["accuracy"] > 0.95
    check_losses("digits", losses(epochs)[:2])
    *_, alone = train(cluster, "alone", "digits", "--nodes", "1", *data, "--", *TWO_RANKS_IN_ONE)
    # Later epochs magnify rounding: they differ by 1e-2 between two instruction sets of one CPU, these by 2e-5.
    assert losses(alone)[:2] == pytest.approx(losses(epochs)[:2], rel=1e-3)
    max((horovod / "checkpoint").glob("*.pt")).unlink()  # as if it had been killed in its last epoch
    options = ["--image", "pytorch-cpu", "--launcher", "env", "--resume", str(horovod), *data]
    program = ("python", "/opt/ctrain/examples/digits/ddp.py", *ONE_OF_TWO)
    *_, resumed = train(cluster, "ddp", *options, "--", *program)
    assert [line["epoch"] for line in resumed] == [10], "the first nine epochs are not trained again"
    assert resumed[0]["loss"] == pytest.approx(epochs[-1]["loss"], rel=1e-5)
    assert resumed[0]["accuracy"] == epochs[-1]["accuracy"]


def test_parameter_servers_and_the_ring_learn_the_same(cluster: Cluster, dozens: Path) -> None:
    """A step sees 60 pictures: 20 of each worker of a server, 15 of each rank of a ring."""
    argv, epochs = ["parameter_server", "--data", str(dozens)], ["--", "--epochs", "3"]
    servers = [*epochs, "--batch-size", "20", "--methods", "sync"]
    done, _, lines = train(cluster, "servers", *argv, *servers, "async")
    check_losses("parameter_server", losses(lines, method="sync")[:5])
    sync, asynchronous = [line for line in lines if "updates" in line]
    assert (sync["updates"], asynchronous["updates"]) == (3 * 24, 3 * 3 * 24)
    assert sync["max_staleness"] == 0 and asynchronous["mean_staleness"] > 0
    assert sync["rank_0_bytes"] == 3 * sync["other_rank_bytes"], "the server has three workers"
    assert all(name in done.stdout for name in ("server, synchronous", "server, asynchronous"))

    exactly = cluster.write("in-float64/sitecustomize.py", IN_FLOAT64.read_text()).parent
    in_float64 = ["--mount", str(exactly), "--env", f"PYTHONPATH={exactly}"]
    _, first, lines = train(cluster, "sync", *argv, *in_float64, *servers)
    steps = losses(lines)
    options = ["--resume", str(first), *epochs, "--batch-size", "15", "--methods", "sync", "ring"]
    done, _, lines = train(cluster, "ring", *argv, *in_float64, *options)
    [ring] = [line for line in lines if "updates" in line]
    assert not losses(lines, method="sync"), "what is done is skipped"
    assert losses(lines, method="ring") == pytest.approx(steps, rel=1e-12), "seen: 1e-15"
    assert ring["updates"] == 3 * 24 and ring["max_staleness"] == 0
    assert ring["rank_0_bytes"] == pytest.approx(ring["other_rank_bytes"], rel=1e-3)
    assert all(name in done.stdout for name in ("server, synchronous", "ring all-reduce"))
    assert min(line["accuracy"] for line in (sync, asynchronous, ring)) > 0.9, done.stdout


def test_a_transformer_is_fine_tuned_from_weights_that_the_example_makes_and_resumed(cluster: Cluster) -> None:
    argv = ["finetune", *ONE_PER_NODE]
    options = ["--", "--pretrain-steps", "20", "--epochs", "2", "--batch-size", "128", "--lr", "0.004"]
    _, run, lines = train(cluster, "tuned", *argv, *options)
    pretraining, first, second = (
        losses(lines, **values) for values in ({"phase": "pretrain"}, {"epoch": 1}, {"epoch": 2})
    )
    assert len(pretraining) == 20 and pretraining[-1] < pretraining[0]
    check_losses("finetune", [*pretraining[:3], *first[:3]])
    assert lines[-1]["accuracy"] > 0.5, "the largest of six classes has a quarter of the passages"
    *_, half, last = sorted((run / "checkpoint").glob("*.pt"))
    assert (half.name, last.name) == (f"step-{len(first):08d}.pt", f"step-{lines[-1]['step']:08d}.pt")
    last.unlink()  # as if it had been killed in its last epoch
    cluster.write("stopped.py", STOPPED.read_text())
    stop = [
        "--image",
        "pytorch-cpu",
        "--launcher",
        "env",
        "--nodes",
        "2",
        "--preflight",
        "off",
        *ONE_PER_NODE,
        *ONE_THREAD,
    ]
    program = ["--resume", str(run), "--name", "stopped", "--", "python", "stopped.py", FINETUNE, "5", *options[1:]]
    done = cluster.run("ctrain", "run", *stop, *program)
    assert done.returncode == EXIT_SAVED, done.stdout + done.stderr
    half = cluster.runs("stopped")
    stopped = losses([json.loads(line) for line in (half / "metrics.jsonl").read_text().splitlines()])
    assert 0 < len(stopped) < len(second), "in the middle of the epoch"
    *_, resumed = train(cluster, "resumed", *argv, "--resume", str(half), *options)
    assert [*stopped, *losses(resumed)] == pytest.approx(second, rel=1e-5), "nothing else is trained again"
    assert resumed[-1]["accuracy"] == lines[-1]["accuracy"]
    if LONG:
        check_given_weights(cluster, run, lines[-1]["passages"])
        check_lora(cluster, run)


def check_lora(cluster: Cluster, run: Path) -> None:
    """With peft, as the README gets it: few weights are trained and kept, and a resumed run goes on with them."""
    given = ["--weights", str(run / "checkpoint/pretrained"), "--lora", "8", "--lr", "0.01", "--batch-size", "128"]
    without = ["ctrain", "run", "finetune", *ONE_PER_NODE, "--nodes", "1", "--mount", str(run), "--name", "no-peft"]
    done = cluster.run(*without, "--", *given)
    assert done.returncode == 2 and "--lora needs the package peft" in done.stdout + done.stderr
    peft = cluster.home / "peft"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(peft), PEFT]
    subprocess.run(pip, check=True)
    more = ["--mount", str(run), "--mount", str(peft), "--env", f"PYTHONPATH={peft}"]
    _, first, lines = train(cluster, "lora", "finetune", *ONE_PER_NODE, *more, "--", *given)
    means = [sum(part) / len(part) for part in (losses(lines, epoch=1), losses(lines, epoch=2))]
    assert means[1] < means[0] - 0.1, "from weights of 20 steps"
    *_, last = sorted((first / "checkpoint").glob("*.pt"))
    whole = (run / "checkpoint/pretrained/model.safetensors").stat().st_size
    assert last.stat().st_size < whole, "with both moments of the optimizer"
    last.unlink()  # as if it had been killed in its last epoch
    options = [*ONE_PER_NODE, *more, "--resume", str(first)]
    *_, resumed = train(cluster, "lora-resumed", "finetune", *options, "--", *given)
    assert losses(resumed) == pytest.approx(losses(lines, epoch=2), rel=1e-5)


def check_given_weights(cluster: Cluster, run: Path, passages: int) -> None:
    """Those that a run has left are tuned for texts on disk."""
    texts = cluster.home / "texts"
    for name, words in {"digits": "one two three four", "letters": "alpha beta gamma delta"}.items():
        (texts / name).mkdir(parents=True, exist_ok=True)
        for number in range(8):
            (texts / name / f"{number}.txt").write_text(" ".join(random.Random(number).choices(words.split(), k=600)))
    given = [
        "--weights",
        str(run / "checkpoint/pretrained"),
        "--data",
        str(texts),
        "--batch-size",
        "8",
        "--lr",
        "0.002",
    ]
    mounts = ["--nodes", "1", "--mount", str(run), "--mount", str(texts)]
    _, own, steps = train(cluster, "own", "finetune", *ONE_PER_NODE, *mounts, "--", *given)
    assert {step["phase"] for step in steps} == {"finetune"} and not (own / "checkpoint/pretrained").exists()
    assert steps[-1]["accuracy"] == 1 and steps[-1]["passages"] < passages


def test_lightning_has_its_ranks_from_ctrain_and_resumes(cluster: Cluster) -> None:
    options = ("--model", "resnet18", "--image-size", "32", "--epochs", "2", "--workers", "0")
    argv = ("lightning", *ONE_PER_NODE, "--data", str(cluster.digits))
    _, run, lines = train(cluster, "lightning", *argv, "--", *options)
    check_losses("lightning", losses(lines)[:2])
    validations = [line for line in lines if "val_accuracy" in line]
    pictures = len(list((cluster.digits / "val").glob("*/*")))
    assert [line["images"] for line in validations] == [pictures] * 2, (
        "each rank has its share, and no picture counts twice"
    )
    assert validations[-1]["val_accuracy"] > 0.5, "chance is 0.1"
    last = run / "checkpoint" / "last.ckpt"
    assert last.resolve().name == "epoch=1.ckpt"
    last.unlink()
    last.symlink_to("epoch=0.ckpt")  # as if it had been killed in its last epoch
    *_, resumed = train(cluster, "resumed", *argv, "--resume", str(run), "--", *options)
    assert losses(resumed) == pytest.approx(losses(lines, epoch=2), rel=1e-5)
    assert {line["epoch"] for line in resumed} == {2}, "the first epoch is not trained again"
