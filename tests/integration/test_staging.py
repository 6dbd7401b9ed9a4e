"""Image and data set are copied to the disk of each node before the ranks start, and they use the copies."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from samples.cluster import Cluster, Done

NODES = ("node01", "node02")
SHOW = ("sh", "-c", "echo image $APPTAINER_CONTAINER")  # the engine's own variable: the file that it runs


@pytest.fixture
def disks(cluster: Cluster) -> Iterator[dict[str, Path]]:
    """The directories of copies on the nodes, each of which has a /tmp of its own."""
    uid = cluster.home.stat().st_uid
    paths = {node: cluster.state / "nodes" / node / "tmp" / f"ctrain-images-{uid}" for node in NODES}
    yield paths
    for path in paths.values():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def run(cluster: Cluster, name: str, *options: str, command: Sequence[str] = SHOW) -> Done:
    site = cluster.write("staging.yaml", "name: staging\nextends: generic-slurm\nstaging: /tmp\n")
    argv = ["--site", str(site), "--nodes", "2", "--image", "pytorch-cpu", "--launcher", "env", "--name", name]
    done = cluster.run("ctrain", "run", *argv, "--preflight", "off", *options, "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def stage_in(cluster: Cluster, name: str) -> list[int]:
    """The exit codes of the stage; none where there was no such stage."""
    lines = (cluster.runs(name) / "events.jsonl").read_text().splitlines()
    return [event["code"] for event in map(json.loads, lines) if event["stage"] == "stage-in" and "code" in event]


def images(cluster: Cluster, name: str) -> list[str]:
    """The files that the ranks ran, and their directories; two ranks on each node."""
    logs = [cluster.runs(name) / f"logs/rank{rank}.log" for rank in range(4)]
    return ["/".join(Path(log.read_text().removeprefix("image ").strip()).parts[-2:]) for log in logs]


def test_ranks_run_the_copy_that_their_node_has(cluster: Cluster, disks: dict[str, Path]) -> None:
    done = run(cluster, "staged", "--stage", "always")
    assert "staging   copied to /tmp on each node" in done.stdout
    image = cluster.record("staged")["image"]
    name = f"{image['digest'].partition(':')[2]}.sif"
    for disk in disks.values():
        [copy] = disk.iterdir()
        assert copy.name == name and copy.stat().st_size == Path(image["path"]).stat().st_size
    assert images(cluster, "staged") == [f"{disks['node01'].name}/{name}"] * 4
    assert stage_in(cluster, "staged") == [0]
    # Only the first node has read the shared image: else the log would name the other one.
    assert "ctrain:" not in (cluster.runs("staged") / "logs/job.log").read_text()
    assert not (cluster.runs("staged") / ".stage").exists()

    # By itself, ctrain copies nothing to two nodes, but uses what is there.
    done = run(cluster, "unstaged")
    assert "staging   only where /tmp has a copy already" in done.stdout
    assert images(cluster, "unstaged") == images(cluster, "staged")
    assert stage_in(cluster, "unstaged") == []


def test_a_node_that_cannot_copy_runs_the_image_of_the_store(cluster: Cluster, disks: dict[str, Path]) -> None:
    disks["node01"].touch()
    run(cluster, "half", "--stage", "always")
    log = (cluster.runs("half") / "logs/job.log").read_text()
    assert ".sif not copied to node01: cannot use" in log
    assert "node02 lost the connection to node01 (connection closed); reading the rest from the shared" in log
    [copy] = disks["node02"].iterdir()
    shared = "/".join(Path(cluster.record("half")["image"]["path"]).parts[-2:])
    assert images(cluster, "half") == [shared, shared, *[f"{copy.parent.name}/{copy.name}"] * 2]
    assert stage_in(cluster, "half") == [1]


def test_ranks_mount_the_copy_of_the_data_set(cluster: Cluster, disks: dict[str, Path], tmp_path: Path) -> None:
    data = [pack(tmp_path, text) for text in ("shared", "copied")]
    shared = cluster.home / "data.sqfs"
    shared.write_bytes(data[0])
    options = ("--stage", "never", "--data", str(shared), "--stage-data")
    done = run(cluster, "data", *options, command=("cat", "/data/text"))
    assert f"data      {shared} -> /data (read-only)" in done.stdout
    assert "staging   data set copied to /tmp on each node" in done.stdout
    assert texts(cluster, "data") == ["shared"] * 4
    assert stage_in(cluster, "data") == [0]
    name = f"{hashlib.sha256(data[0]).hexdigest()}.sqfs"
    copies = {node: disk / name for node, disk in disks.items()}
    assert [copy.read_bytes() for copy in copies.values()] == [data[0]] * 2
    assert "ctrain:" not in (cluster.runs("data") / "logs/job.log").read_text()

    copies["node02"].write_bytes(data[1])  # of the same size: only to see which file is mounted
    run(cluster, "data-again", *options, command=("cat", "/data/text"))
    assert texts(cluster, "data-again") == ["shared", "shared", "copied", "copied"]


def pack(folder: Path, text: str) -> bytes:
    """A SquashFS image with a file of this text."""
    (folder / text).mkdir()
    (folder / text / "text").write_text(text)
    image = folder / f"{text}.sqfs"
    subprocess.run(["mksquashfs", folder / text, image, "-quiet", "-no-progress"], check=True)
    return image.read_bytes()


def texts(cluster: Cluster, name: str) -> list[str]:
    return [(cluster.runs(name) / f"logs/rank{rank}.log").read_text().strip() for rank in range(4)]
