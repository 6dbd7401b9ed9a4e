"""nodes.py as it runs on several nodes: here each is a process with an address of its own, 127.0.1.N."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.payload import PREFLIGHT

pytestmark = pytest.mark.whole_run

# The names and addresses of the nodes are made up, and loopback addresses are well here; a little patience is enough.
# A busy machine makes some slow: only one that is so by far counts.
NODE = """\
import os, re, sys, time
sys.path.insert(0, {inside!r})
import diagnosis, nodes
diagnosis.SLOW = 0.001
rank = int(os.environ["NODE_RANK"])
nodes.node_name = lambda: f"node{{rank}}"
nodes.own_address = lambda backend, connected: (f"127.0.1.{{rank + 1}}", "made up")
nodes.own_problems = lambda all: []
nodes.MEETING_SECONDS = {patience}
nodes.socket.gethostbyname = lambda name: name
nodes.CHUNK = b"0" * 1024
{change}
sys.exit(nodes.main())
"""

GPUS = "0, 3, 81559, 0, Not Active, Not Active\n1, 3, 81559, 0, Not Active, Not Active"  # nvidia-smi's answer


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
        text = NODE.format(inside=str(PREFLIGHT), change=changes.get(rank, ""), patience=patience)
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


def test_the_first_node_has_the_address_at_which_others_reach_it(run: Path) -> None:
    """Its own name may mean a loopback address there, and nowhere else: that stopped jobs of NCCL."""
    unknown = "nodes.own_address = lambda backend, connected: ('', 'its route')"
    shown = "nodes.own_problems = lambda all: [node['address'] for node in all]"
    assert meet(run, 3, {0: f"{unknown}\n{shown}"}) == [1, 1, 1]
    assert reported(run)["failed"] == ["127.0.0.1", "127.0.1.2", "127.0.1.3"]
    (run / "nodes/0.jsonl").unlink()
    assert meet(run, 3, {0: unknown}) == [0, 0, 0]


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


def test_a_node_whose_gpus_are_broken_is_named(run: Path) -> None:
    """However long nvidia-smi takes, its node has come."""
    broken = "nodes.gpu_problems = lambda planned: (time.sleep(2 * nodes.CONNECT_SECONDS), ['GPU 1 is dead'])[1]"
    keep = "nodes.own_problems = lambda all: [problem for node in all for problem in node['problems']]"
    assert meet(run, 2, {0: keep, 1: broken}) == [1, 1]
    assert reported(run)["failed"] == ["GPU 1 is dead"]


def test_a_node_that_dies_meanwhile_is_named(run: Path) -> None:
    assert meet(run, 3, {1: "nodes.unreached = lambda *_: os._exit(9)"}) == [1, 9, 1]
    assert "node1" in reported(run)["failed"][0]


@pytest.mark.parametrize(
    ("taken", "patience"),
    [(0.5, 8.5), (3.0, 6.0), (10.0, 20.0), (100.0, 120.0), (-5.0, 9.0)],  # the last one: a clock that is ahead
)
def test_a_dead_link_is_named_within_10_seconds_of_a_start_of_up_to_3(
    run: Path, taken: float, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PREFLIGHT)
    nodes: Any = importlib.import_module("nodes")
    monkeypatch.setenv("CTRAIN_RUN_DIR", str(run))
    monkeypatch.setattr(nodes.time, "time", lambda: (run / "events.jsonl").stat().st_mtime + taken)
    assert nodes._patience(4) == pytest.approx(patience + 0.04, abs=0.001)


@pytest.mark.parametrize(
    ("code", "answer"), [(0, ""), (1, "Unable to determine the device handle for GPU0000:C1:00.0")]
)
def test_of_one_node_the_gpus_are_checked(code: int, answer: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = run / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\necho '{answer or GPUS}'\nexit {code}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{run}:/usr/bin:/bin")
    environ = {**os.environ, "NODE_RANK": "0", "CTRAIN_RUN_DIR": str(run)}
    done = subprocess.run([sys.executable, PREFLIGHT / "nodes.py", "1", "nccl", "0", "2", ""], env=environ, check=False)
    assert done.returncode == code
    events = [json.loads(line) for file in (run / "nodes").iterdir() for line in file.read_text().splitlines()]
    assert [event["message"] for event in events] == [f"{event['node']}: nvidia-smi: {answer}" for event in events]
    assert len(events) == code


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PREFLIGHT)
    return importlib.import_module("nodes")


def test_at_10000_nodes_each_hears_of_1000_and_its_partners(nodes: Any) -> None:
    """The whole list, to each of them, was 31 GB."""
    count = 10_000
    roster = [
        {
            "rank": rank,
            "name": f"node{rank}",
            "address": f"10.0.{rank >> 8}.{rank & 255}",
            "port": 40000 + rank % 9,
            "image": "i",
        }
        for rank in range(count)
    ]
    ranks = [0, 1, 4999, 9999]
    for rank, text in zip(ranks, nodes.answers(roster, ranks)):
        assert len(text) < 80_000
        peers = dict(zip(((rank + step) % count for step in nodes.distances(count)), json.loads(text)))
        assert {(rank + step) % count for step in nodes.rounds(count)} <= set(peers)
        assert len(peers) == len(nodes.distances(count)) <= nodes.NEIGHBOURS + len(nodes.rounds(count))
        assert all(peer["name"] == f"node{other}" for other, peer in peers.items())
    assert nodes.distances(count)[: nodes.NEIGHBOURS] == list(range(1, nodes.NEIGHBOURS + 1))


@pytest.mark.parametrize("count", [2, 3, 5, 1000, 1001])
def test_up_to_1001_nodes_each_hears_of_all_others(nodes: Any, count: int) -> None:
    assert nodes.distances(count) == list(range(1, count))
    assert set(nodes.rounds(count)) <= set(nodes.distances(count))


@pytest.mark.parametrize("count", [2, 1000, 10_000])
def test_the_others_wait_for_longer_than_the_first_node(
    nodes: Any, count: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late the last of them comes."""
    monkeypatch.setenv("CTRAIN_RUN_DIR", str(run))
    monkeypatch.setattr(nodes.time, "time", lambda: (run / "events.jsonl").stat().st_mtime + 3600)
    assert nodes._longest(count) > nodes._patience(count)
