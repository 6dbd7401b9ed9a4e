"""The preflight on the real cluster: what is wrong with a node's link, interface or image is named before any rank
starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.cluster import Cluster, Done, until

IMAGE = ("--image", "pytorch-cpu", "--launcher", "env")
ONE_RANK = ("--gpus-per-node", "0", "--ranks-per-node", "1")
LINK = "ct-node02"  # the machine's end of node02's link


def root(cluster: Cluster, *argv: str) -> str:
    """The output of an administrator's command."""
    environ = {**os.environ, "SLURM_CONF": str(cluster.state / "etc/slurm.conf")}
    return subprocess.run(argv, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout


def run(cluster: Cluster, name: str, *argv: str) -> Done:
    return cluster.run("ctrain", "run", *IMAGE, "--preflight", "strict", "--name", name, *argv, "--", "true")


def problems(cluster: Cluster, done: Done, name: str) -> list[str]:
    """Why the preflight has failed, and no rank has started."""
    assert done.returncode == 80, done.stdout + done.stderr
    record = cluster.record(name)
    assert record["exit"]["by"] == "ctrain"
    assert record["exit"]["reason"] == f"preflight: {record['preflight'][-1]}"
    assert f"preflight: {record['preflight'][-1]}\n" in done.stdout
    assert not list((cluster.runs(name) / "logs").glob("rank*.log"))
    return list(record["preflight"])


@pytest.fixture
def three_nodes(cluster: Cluster) -> Iterator[str]:
    """A partition of three nodes: of two, none can be blamed."""
    before = cluster.jobs()
    root(cluster, "scontrol", "create", "PartitionName=three", "Nodes=node01,node02,skl01", "State=UP")
    yield "three"
    cluster.end_all(but=before)  # a partition with jobs cannot be deleted
    root(cluster, "scontrol", "delete", "PartitionName=three")


@pytest.fixture
def slow_link() -> Iterator[None]:
    """What goes to node02 has a twentieth of what sockets get here, at most."""
    limit = ("tbf", "rate", "100mbit", "burst", "64kb", "latency", "300ms")
    subprocess.run(["tc", "qdisc", "add", "dev", LINK, "root", *limit], check=True)
    yield
    subprocess.run(["tc", "qdisc", "del", "dev", LINK, "root"], check=True)


@pytest.fixture
def broken_link(cluster: Cluster) -> Iterator[None]:
    subprocess.run(["ip", "link", "set", LINK, "down"], check=True)
    yield
    subprocess.run(["ip", "link", "set", LINK, "up"], check=True)
    for state in (("State=DOWN", "Reason=test"), ("State=RESUME",)):  # else the job completes there for minutes
        root(cluster, "scontrol", "update", "NodeName=node02", *state)
    until(lambda: "idle\n" in root(cluster, "sinfo", "-h", "-N", "-n", "node02", "-o", "%T"), "node02's return")


def test_the_network_of_healthy_nodes_is_measured(cluster: Cluster) -> None:
    done = run(cluster, "healthy", "--nodes", "2", *ONE_RANK, "--launcher", "torchrun")
    assert done.returncode == 0, done.stdout + done.stderr
    nodes, ranks = cluster.record("healthy")["preflight"]
    assert nodes.startswith("2 nodes reach each other, by TCP at ")
    assert ranks.startswith("gloo: all-reduce of ")
    assert ranks.endswith(" GB/s bus bandwidth")


@pytest.mark.usefixtures("slow_link")
def test_a_slow_link(cluster: Cluster, three_nodes: str) -> None:
    done = run(cluster, "slow", "--nodes", "3", "--partition", three_nodes, *ONE_RANK)
    [problem] = problems(cluster, done, "slow")
    assert problem.startswith("node02: slow network: ")


@pytest.mark.usefixtures("slow_link")
def test_a_slow_link_by_the_back_end_itself(cluster: Cluster, three_nodes: str) -> None:
    """What the ranks see where sockets are not the network of the back end."""
    [inside] = (cluster.state / "apps/venv/lib").glob("python3*/site-packages/ctrain_runtime/payload/preflight")
    where = ("--nodes", "3", "--partition", three_nodes, *ONE_RANK, "--mount", f"{inside}:/preflight:ro")
    # Nodes that share a busy machine differ by more than nodes do, and the slow one by much more.
    change = "import os, sys; sys.path.insert(0, '/preflight'); import world; world.SLOW = 0.1; os._exit(world.main())"
    program = ("python3", "-c", change, "env", "3", "gloo", "1000", "")
    done = cluster.run("ctrain", "run", *IMAGE, *where, "--preflight", "off", "--name", "world", "--", *program)
    assert done.returncode == 1, done.stdout + done.stderr
    events = (cluster.runs("world") / "nodes/0.jsonl").read_text().splitlines()
    failed = [
        event for event in map(json.loads, events) if (event.get("stage"), event["what"]) == ("preflight", "failed")
    ]
    assert [event["message"].partition(" network: ")[0] for event in failed] == ["node02: slow"]


@pytest.mark.usefixtures("broken_link")
def test_a_broken_link(cluster: Cluster) -> None:
    done = run(cluster, "broken", "--nodes", "2", *ONE_RANK)
    [problem] = problems(cluster, done, "broken")
    assert problem.startswith("node02: did not start, or not reach node01, in ")


def test_a_wrong_interface(cluster: Cluster) -> None:
    done = run(cluster, "interface", "--nodes", "2", *ONE_RANK, "--env", "GLOO_SOCKET_IFNAME=lo")
    where = "other nodes cannot reach its address 127.0.0.1 (interface lo of GLOO_SOCKET_IFNAME)"
    assert problems(cluster, done, "interface") == [f"node01: {where}", f"node02: {where}"]


def on_node(cluster: Cluster, node: str, script: str) -> Done:
    return cluster.run("srun", f"--nodelist={node}", "--mem=100", "bash", "-c", script)


@pytest.fixture
def other_image(cluster: Cluster) -> Iterator[str]:
    """A site whose nodes have copies of the image on their own disks; that of node02 has another id in its header."""
    shown = cluster.run("ctrain", "run", *IMAGE, "--dry-run", "--json", "--", "true")
    image = json.loads(shown.stdout)["plan"]["image"]
    copies = "${TMPDIR:-/tmp}/ctrain-images-$(id -u)"
    copy = f"{copies}/{image['digest'].partition(':')[2]}.sif"
    make = f"mkdir -m 700 {copies} && install -m 600 {image['path']} {copy} && printf X | dd of={copy} bs=1 seek=50"
    try:
        made = on_node(cluster, "node02", f"{make} conv=notrunc")
        assert made.returncode == 0, made.stderr
        yield str(cluster.write("copies.yaml", "name: copies\nextends: generic-slurm\nstaging: /tmp\n"))
    finally:
        for node in ("node01", "node02"):
            on_node(cluster, node, f"rm -r {copies}")


def test_another_image_on_a_node(cluster: Cluster, other_image: str) -> None:
    done = run(cluster, "other", "--nodes", "2", *ONE_RANK, "--site", other_image)
    assert problems(cluster, done, "other") == ["node02: its image is not that of node01"]
    assert Path(cluster.record("other")["image"]["path"]).is_file()


def test_what_bench_saves_is_what_the_next_run_expects(cluster: Cluster) -> None:
    settings = {"XDG_CONFIG_HOME": str(cluster.home / "bench-config")}
    argv = ("--nodes", "2", *IMAGE, *ONE_RANK, "--sizes", "1048576", "--name", "bench", "--save", "--json")
    done = cluster.run("ctrain", "bench", *argv, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)["results"]
    assert len(results) == 5  # all operations, also those that only newer versions of gloo have
    saved = next(line["bus"] for line in results if line["operation"] == "all-reduce")
    site = json.loads(cluster.run("ctrain", "site", "show", "--json", **settings).stdout)
    assert site["site"]["expected_bandwidth"]["gloo"] == pytest.approx(saved, rel=0.01)
    assert site["sources"]["expected_bandwidth.gloo"].endswith("sites/generic-slurm.yaml (user)")
    dry = cluster.run("ctrain", "run", "--nodes", "2", *IMAGE, "--dry-run", "--", "true", **settings)
    assert "\npreflight site generic-slurm has expectations of its network" in dry.stdout
    shutil.rmtree(cluster.home / "bench-config")
