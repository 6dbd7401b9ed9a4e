"""The image is copied to the disk of each node before the ranks start, and they run the copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.cluster import Cluster

IMAGE = ("--image", "pytorch-cpu")
SHOW = ("sh", "-c", "echo image $APPTAINER_CONTAINER")  # the engine's own variable: the file that it runs


@pytest.fixture
def disk(cluster: Cluster) -> Iterator[Path]:
    """A directory that all nodes have, as the researcher's; on a real cluster each has its own."""
    path = cluster.write("disk/.keep", "").parent
    yield path
    shutil.rmtree(path)


def site(cluster: Cluster, staging: Path) -> str:
    return str(cluster.write("staging.yaml", f"name: staging\nextends: generic-slurm\nstaging: {staging}\n"))


def test_ranks_run_the_copy_that_their_node_made(cluster: Cluster, disk: Path) -> None:
    argv = ["--site", site(cluster, disk), "--nodes", "2", *IMAGE, "--launcher", "env", "--name", "staged"]
    done = cluster.run("ctrain", "run", *argv, "--", *SHOW)
    assert done.returncode == 0, done.stdout + done.stderr
    digest = cluster.record("staged")["image"]["digest"].partition(":")[2]
    [copy] = disk.glob("ctrain-images-*/*")
    assert copy.name == f"{digest}.sif"
    logs = sorted((cluster.runs("staged") / "logs").glob("rank*.log"))
    assert len(logs) == 4
    assert {log.read_text() for log in logs} == {f"image {copy}\n"}
    events = [json.loads(line) for line in (cluster.runs("staged") / "events.jsonl").read_text().splitlines()]
    assert [event.get("code") for event in events if event["stage"] == "stage-in"] == [None, 0]


def test_a_node_that_cannot_copy_runs_the_image_of_the_store(cluster: Cluster, disk: Path) -> None:
    argv = [
        "--site",
        site(cluster, disk / "missing"),
        "--nodes",
        "2",
        *IMAGE,
        "--launcher",
        "env",
        "--name",
        "unstaged",
    ]
    done = cluster.run("ctrain", "run", *argv, "--", *SHOW)
    assert done.returncode == 0, done.stdout + done.stderr
    image = cluster.record("unstaged")["image"]["path"]
    assert (cluster.runs("unstaged") / "logs/rank3.log").read_text() == f"image {image}\n"
    log = (cluster.runs("unstaged") / "logs/job.log").read_text()
    assert all(f"image not copied to {node}" in log for node in ("node01", "node02")), log
