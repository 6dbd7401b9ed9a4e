"""The packaged jobs on two nodes, with the image's PyTorch and real data: each trains to a sensible result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samples.cluster import Cluster, Done

ONE_PER_NODE = ("--ranks-per-node", "1")
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")  # the nodes share the cores of one machine


def train(cluster: Cluster, name: str, *argv: str) -> tuple[Done, Path, list[dict[str, Any]]]:
    """Run a job on two nodes; its end, its run directory, and the lines of its metrics."""
    done = cluster.run("ctrain", "run", "--nodes", "2", "--preflight", "off", *ONE_THREAD, "--name", name, *argv)
    assert done.returncode == 0, done.stdout + done.stderr
    run = cluster.runs(name)
    return done, run, [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_selftest_checks_each_library_and_says_what_it_leaves_out(cluster: Cluster) -> None:
    done, run, steps = train(cluster, "selftest", "selftest", *ONE_PER_NODE)
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert [rows[name] for name in ("all-reduce", "reduce-scatter", "all-to-all")] == [["ok"] * 3] * 3, done.stdout
    assert [rows[name] for name in ("reduce", "scatter")] == [["ok", "ok", "-"]] * 2
    assert "node02: rank 1 cpu" in done.stdout and "skipped" not in done.stdout
    table = [line for line in done.stdout.splitlines() if " ok " in line or "horovod (" in line]
    assert len(table) == 8 and all(line == line.rstrip() for line in table)
    assert steps[-1]["loss"] < steps[0]["loss"] / 4
    assert "html" in (run / "profile.html").read_text()[:100]


def test_digits_are_learnt_by_horovod_and_resumed_alike_by_ddp(cluster: Cluster) -> None:
    data = ("--data", str(cluster.digits))
    _, horovod, epochs = train(cluster, "horovod", "digits", *data)
    assert [line["epoch"] for line in epochs] == list(range(1, 11))
    assert epochs[-1]["accuracy"] > 0.95
    max((horovod / "checkpoint").iterdir()).unlink()  # as if it had been killed in its last epoch
    options = ["--image", "pytorch-cpu", "--launcher", "env", "--resume", str(horovod), *data]
    *_, resumed = train(cluster, "ddp", *options, "--", "python", "/opt/ctrain/examples/digits/ddp.py")
    assert [line["epoch"] for line in resumed] == [10], "the first nine epochs are not trained again"
    assert resumed[0]["loss"] == pytest.approx(epochs[-1]["loss"], rel=1e-5)
    assert resumed[0]["accuracy"] == epochs[-1]["accuracy"]


def test_parameter_servers_and_the_ring_learn_the_same(cluster: Cluster) -> None:
    argv = ["parameter_server", "--data", str(cluster.digits), "--", "--epochs", "3"]
    done, _, lines = train(cluster, "servers", *argv)
    sync, asynchronous, ring = [line for line in lines if "updates" in line]
    assert min(line["accuracy"] for line in (sync, asynchronous, ring)) > 0.9, done.stdout
    assert (sync["max_staleness"], ring["max_staleness"]) == (0, 0)
    assert asynchronous["mean_staleness"] > 0 and asynchronous["updates"] == 3 * sync["updates"]
    assert sync["rank_0_bytes"] == 3 * sync["other_rank_bytes"], "the server has three workers"
    assert ring["rank_0_bytes"] == pytest.approx(ring["other_rank_bytes"], rel=1e-3)
    assert "ring all-reduce" in done.stdout


def test_a_transformer_is_fine_tuned_from_weights_that_the_example_makes(cluster: Cluster) -> None:
    _, run, lines = train(cluster, "tuned", "finetune", *ONE_PER_NODE, "--", "--pretrain-steps", "20", "--epochs", "1")
    assert [line["phase"] for line in lines[:20]] == ["pretrain"] * 20
    assert lines[19]["loss"] < lines[0]["loss"]
    assert lines[-1]["accuracy"] > 0.5, "the largest of six classes has a quarter of the passages"
    assert {path.name for path in (run / "checkpoint").iterdir()} == {"pretrained", f"step-{lines[-1]['step']:08d}.pt"}


def test_lightning_has_its_ranks_from_ctrain(cluster: Cluster) -> None:
    options = ("--model", "resnet18", "--image-size", "32", "--epochs", "2", "--workers", "0")
    argv = ("lightning", *ONE_PER_NODE, "--data", str(cluster.digits), "--", *options)
    _, run, lines = train(cluster, "lightning", *argv)
    validations = [line for line in lines if "val_accuracy" in line]
    pictures = len(list((cluster.digits / "val").glob("*/*")))
    assert [line["images"] for line in validations] == [pictures] * 2, (
        "each rank has its share, and no picture counts twice"
    )
    assert validations[-1]["val_accuracy"] > 0.5, "chance is 0.1"
    assert (run / "checkpoint" / "last.ckpt").exists()
