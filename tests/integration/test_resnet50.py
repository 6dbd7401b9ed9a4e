"""The main job: ResNet-50 on two nodes, trained on real images, resumed from its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from samples.cluster import Cluster


def metrics(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(the lines of the steps, those of the validations)."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line], [line for line in lines if "val_accuracy" in line]


def test_it_learns_and_goes_on_from_its_checkpoint(cluster: Cluster) -> None:
    argv = ["ctrain", "run", "resnet50", "--nodes", "2", "--data", str(cluster.digits)]
    first = cluster.run(*argv, "--name", "first", "--", "--epochs", "4", timeout=900)
    assert first.returncode == 0, first.stdout + first.stderr
    runs = cluster.home / "ctrain-runs"
    record = cluster.record("first")
    assert (record["nodes"], record["world_size"], record["launcher"]) == (["node01", "node02"], 4, "mpi")
    assert record["image"]["name"] == "pytorch-cpu" and record["image"]["digest"].startswith("sha256:")
    steps, validations = metrics(runs / "first")
    assert [line["step"] for line in steps] == list(range(1, steps[-1]["steps"] + 1))
    assert set(steps[0]) >= {"epoch", "step", "loss", "lr", "images_per_second"}
    assert mean(line["loss"] for line in steps[-5:]) < 0.7 * mean(line["loss"] for line in steps[:5])
    assert validations[-1]["val_accuracy"] > 0.5, "chance is 0.1"
    assert "epoch 4/4" in first.stdout and first.stdout.splitlines()[-1] == f"run directory: {runs / 'first'}"
    assert any((runs / "first" / "checkpoint").iterdir())

    resume = ["--name", "second", "--resume", str(runs / "first")]
    second = cluster.run(*argv, *resume, "--", "--epochs", "5", timeout=900)
    assert second.returncode == 0, second.stdout + second.stderr
    steps, _ = metrics(runs / "second")
    assert {line["epoch"] for line in steps} == {5}, "the first four epochs are not trained again"
