"""Many nodes: what a run costs must grow with nodes, not with ranks, and nothing may depend on there being two."""

from __future__ import annotations

import pytest

from samples.cluster import Cluster
from samples.long_mode import often

NODES = often(64, 16)


@pytest.fixture
def many_nodes(cluster: Cluster) -> Cluster:
    cluster.grow(NODES)
    return cluster


def test_a_run_on_many_nodes(many_nodes: Cluster) -> None:
    """Every rank starts, is counted, and finds the same rendezvous; the program itself is the least there is."""
    program = ["--", "/bin/sh", "-c", "echo $RANK $WORLD_SIZE $MASTER_ADDR $NODE_RANK"]
    argv = ["--nodes", str(NODES), "--ranks-per-node", "1", "--launcher", "env", "--image", "pytorch-cpu"]
    done = many_nodes.run("ctrain", "run", *argv, "--name", "many", *program, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    run = many_nodes.runs("many")
    lines = [(run / "logs" / f"rank{rank}.log").read_text().split() for rank in range(NODES)]
    assert lines == [[str(rank), str(NODES), "node01", str(rank)] for rank in range(NODES)]
    record = many_nodes.record("many")
    assert record["nodes"] == [f"node{number:02}" for number in range(1, NODES + 1)]
    assert len(list((run / "nodes").iterdir())) == NODES
