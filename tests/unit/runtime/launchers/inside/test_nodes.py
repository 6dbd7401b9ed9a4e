"""nodes.py as it runs on several nodes: here each is a process with an address of its own, 127.0.1.N."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.launchers.preflight import INSIDE

# The names and addresses of the nodes are made up, and loopback addresses are well here; a little patience is enough.
# A busy machine makes some slow: only one that is so by far counts.
NODE = """\
import os, re, sys, time
sys.path.insert(0, {inside!r})
import judge, nodes
judge.SLOW = 0.001
rank = int(os.environ["NODE_RANK"])
nodes.node_name = lambda: f"node{{rank}}"
nodes.own_address = lambda backend, connected: (f"127.0.1.{{rank + 1}}", "made up")
nodes.own_problems = lambda all: []
nodes.START_SECONDS = {patience}
nodes.socket.gethostbyname = lambda name: name
nodes.CHUNK = b"0" * 1024
{change}
sys.exit(nodes.main())
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "nodes").mkdir()
    (tmp_path / "events.jsonl").write_text("{}\n")
    return tmp_path


def meet(
    run: Path, count: int, changes: dict[int, str], absent: tuple[int, ...] = (), patience: float = 20
) -> list[int]:
    """The exit codes of the nodes that are there; `changes` is code for some of them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    (run / "hosts").write_text("".join(f"node{number}.cluster\n" for number in range(count)))
    started = []
    for rank in set(range(count)) - set(absent):
        variables = {
            "NODE_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "CTRAIN_RUN_DIR": str(run),
        }
        text = NODE.format(inside=str(INSIDE), change=changes.get(rank, ""), patience=patience)
        argv = [sys.executable, "-c", text, str(count), "gloo", "0", "0", "an image"]
        environment = {**os.environ, **variables}
        started.append(subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True))
    for node in started:
        node.communicate(timeout=60)
    return [node.returncode for node in started]


def reported(run: Path) -> dict[str, list[str]]:
    """What the first node has written, by kind; no other node writes anything."""
    assert [path.name for path in (run / "nodes").iterdir()] == ["0.jsonl"]
    events: list[dict[str, Any]] = [json.loads(line) for line in (run / "nodes/0.jsonl").read_text().splitlines()]
    assert {(event["stage"], event["node"]) for event in events} == {("preflight", "node0")}
    return {kind: [event["message"] for event in events if event["what"] == kind] for kind in ("measured", "failed")}


def test_nodes_that_reach_each_other(run: Path) -> None:
    assert meet(run, 3, {}) == [0, 0, 0]
    [measured] = reported(run)["measured"]
    assert measured.startswith("3 nodes reach each other, by TCP at ")
    assert reported(run)["failed"] == []


def test_a_node_that_never_comes_is_named(run: Path) -> None:
    assert meet(run, 3, {}, absent=(1,), patience=3) == [1, 1]
    [failed] = reported(run)["failed"]
    assert failed.startswith("node1.cluster: did not start, or not reach 127.0.0.1, in ")


def test_a_node_that_the_others_do_not_reach_is_named(run: Path) -> None:
    closed = """\
write = nodes.Line.write
nodes.Line.write = lambda line, text: write(line, re.sub('"port": [0-9]+', '"port": 1', text))"""
    assert meet(run, 3, {2: closed}) == [1, 1, 1]
    [failed] = reported(run)["failed"]
    assert failed.startswith("node0 does not reach node2 (127.0.1.3, made up): Connection refused; 2 such failures")


def test_a_node_that_sends_slowly_is_named(run: Path) -> None:
    slow = """\
monotonic = time.monotonic
nodes.CHUNK = b"0"
nodes.time.monotonic = lambda: (time.sleep(0.02), monotonic())[1]"""
    assert meet(run, 4, {1: slow}) == [1, 1, 1, 1]
    [failed] = reported(run)["failed"]
    assert failed.startswith("node1: slow network: sends ")


def test_a_node_that_dies_meanwhile_is_named(run: Path) -> None:
    assert meet(run, 3, {1: "nodes.unreached = lambda *_: os._exit(9)"}) == [1, 9, 1]
    assert "node1" in reported(run)["failed"][0]
