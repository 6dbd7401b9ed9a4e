"""world.py after the ranks have met, with stand-ins for torch and NCCL. With real torch and gloo: tests/integration."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ctrain_runtime.payload import PREFLIGHT

IB = """\
node01:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.7<0>
node01:7:7 [0] NCCL INFO Using network IB
"""
FALLBACK = """\
node01:7:7 [0] NCCL INFO NET/IB : No device found.
node01:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>
node01:7:7 [0] NCCL INFO Using network Socket
"""
NODES = {"network 1": "node02 ", "network 2": "node03 ", "network 3": "node04 "}  # what the other ranks have set
RATES = [(sender, receiver, 12.0) for sender in range(4) for receiver in range(4) if sender != receiver]


class Store(dict[str, str]):
    def set(self, key: str, value: str) -> None:
        self[key] = value

    def get(self, key: str, _: Any = None) -> Any:
        return self[key].encode()


class World:
    """Rank 0 of 4 nodes, one rank each."""

    def __init__(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.log, self.bus, self.rates = run, IB, 90.0, RATES
        for module in ("diagnosis", "nccl_log", "node_checks", "nodes", "world"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.syspath_prepend(PREFLIGHT)
        dist: Any = ModuleType("torch.distributed")
        dist.init_process_group = lambda *_, **__: Path(os.environ["NCCL_DEBUG_FILE"]).write_text(self.log)
        dist.barrier = lambda: None
        torch: Any = ModuleType("torch")
        torch.distributed = dist
        collectives: Any = ModuleType("collectives")
        collectives.device_of = lambda _: SimpleNamespace(type="cuda")
        collectives.check_bandwidth = lambda *_: {"size": 268435456, "bus": self.bus}
        collectives.rates_in_pairs = lambda *_: self.rates
        for module in (dist, torch, collectives):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}.items():
            monkeypatch.setenv(name, value)
        for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_NET"):
            monkeypatch.setenv(name, "")  # what the program sets is taken back at the end
        monkeypatch.setenv("HOME", str(run))
        monkeypatch.setenv("CTRAIN_RUN_DIR", str(run))
        self.module: Any = importlib.import_module("world")
        self.report_far_cores = self.module.report_far_cores
        monkeypatch.setattr(self.module, "report_far_cores", lambda _: None)
        monkeypatch.setattr(self.module.nodes, "node_name", lambda: "node01")
        monkeypatch.setattr(self.module.node_checks, "fast_adapters", lambda: self.adapters)
        self.adapters: list[str] = []

    def problems(self, expected: float = 0.0, network: str = "", others: dict[str, str] = NODES) -> list[str]:
        return list(self.module.bandwidth_problems(Store(others), "nccl", expected, network))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    (tmp_path / "nodes").mkdir()
    return World(tmp_path, monkeypatch)


def test_a_network_that_is_well_is_measured(world: World) -> None:
    assert world.problems(expected=96.0, network="IB") == []
    measured = json.loads((world.run / "nodes/0.jsonl").read_text())["message"]
    found = "nccl over IB [0]mlx5_0:1/IB [RO]: all-reduce of 268 MB at 90 GB/s bus bandwidth (96 expected)"
    assert measured == found


def test_another_network_than_that_of_the_site(world: World) -> None:
    world.log = FALLBACK
    [problem] = world.problems(network="IB")
    assert problem.startswith("node01: NCCL uses Socket [0]eth0:10.0.0.7<0>, not IB (NET/IB : No device")


def test_sockets_beside_a_faster_adapter_without_any_expectation(world: World) -> None:
    world.log, world.adapters = FALLBACK, ["mlx5_0"]
    [problem] = world.problems()
    fault = "although mlx5_0 could be used (NET/IB : No device found.)"
    remedy = "See: ctrain help network. To run all the same: --preflight warn"
    assert problem == f"node01: NCCL uses Socket [0]eth0:10.0.0.7<0>, {fault}. {remedy}"


def test_sockets_where_there_is_nothing_else(world: World) -> None:
    world.log = FALLBACK
    assert world.problems() == []


def test_on_one_node_no_network_is_needed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    world.log, world.adapters = FALLBACK, ["mlx5_0"]
    assert world.problems() == []


def test_each_node_is_named_once(world: World) -> None:
    others = {"network 1": "node01 ", "network 2": "node02 NCCL uses Socket", "network 3": "node02 NCCL uses Socket"}
    assert world.problems(others=others) == ["node02: NCCL uses Socket"]


@pytest.mark.parametrize(("bus", "is_slow"), [(49.0, False), (47.0, True)])
def test_less_than_half_of_what_is_expected(bus: float, is_slow: bool, world: World) -> None:
    world.bus = bus
    found = f"nccl over IB [0]mlx5_0:1/IB [RO]: all-reduce of 268 MB at {bus:.3g} GB/s bus bandwidth (96 expected)"
    assert world.problems(expected=96.0) == [f"slow network between all 4 nodes: {found}"] * is_slow


def test_of_a_slow_network_the_node_is_named_that_is_slow_with_all_others(world: World) -> None:
    world.bus = 10.0
    world.rates = [(sender, receiver, 5.0 if 2 in (sender, receiver) else rate) for sender, receiver, rate in RATES]
    found = "sends 5 GB/s and receives 5 GB/s; other nodes 12 GB/s"
    assert world.problems(expected=96.0) == [f"node03: slow network: {found}"]


def test_of_two_nodes_none_can_be_blamed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    world.bus, world.rates = 10.0, [(0, 1, 5.0), (1, 0, 5.0)]
    [problem] = world.problems(expected=96.0)
    assert problem.startswith("slow network between node01 and node02: nccl over IB ")


def test_a_problem_is_an_event_and_ends_the_rank(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.module, "torch_store", lambda: Store(NODES))
    monkeypatch.setattr(world.module, "torch_ranks", lambda expected, _: expected)
    monkeypatch.setattr(sys, "argv", ["world.py", "env", "4", "nccl", "96", "IB"])
    assert world.module.main() == 0
    world.bus = 10.0
    assert world.module.main() == 1
    events = [json.loads(line) for line in (world.run / "nodes/0.jsonl").read_text().splitlines()]
    assert [(event["what"], event["stage"], event["node"]) for event in events[-2:]] == [
        ("measured", "preflight", "node01"),
        ("failed", "preflight", "node01"),
    ]


@pytest.mark.parametrize(("per_node", "disabled", "hinted"), [("4", "", True), ("4", "1", False), ("1", "", False)])
def test_an_all_reduce_of_nccl_that_hangs_is_named(
    per_node: str, disabled: str, hinted: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, codes = threading.Event(), []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", per_node)
    monkeypatch.setenv("NCCL_P2P_DISABLE", disabled)
    monkeypatch.setattr(world.module, "HANG_SECONDS", 0.01, raising=False)
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), ended.set()))
    hang = sys.modules["collectives"]
    monkeypatch.setattr(hang, "check_bandwidth", lambda *_: ended.wait(30) and {"size": 1, "bus": 1.0}, raising=False)
    world.problems()
    assert codes == [1]
    message = json.loads((world.run / "nodes/0.jsonl").read_text().splitlines()[0])["message"]
    seconds = "0.01" if per_node == "4" else "0.21"  # on several nodes it takes longer to connect
    assert message.startswith(f"node01: nccl: the first all-reduce of 4 ranks is not done after {seconds} s")
    assert ("NCCL_P2P_DISABLE=1" in message) is hinted


@pytest.mark.parametrize(
    ("cores", "node", "address", "reported"),
    [
        ({0, 1}, "0", (0, 0xC1, 0), True),
        ({0, 49}, "0", (0, 0xC1, 0), False),
        ({0, 1}, "1", (0, 0xC1, 0), False),  # one node stands for all
        ({0, 1}, "0", (0, 0xC2, 0), False),  # the kernel does not tell
        ({0, 1}, "0", (0, 0xC1, None), False),  # nor does torch
    ],
)
def test_a_rank_whose_cores_are_far_from_its_gpu(
    cores: set[int], node: str, address: tuple[Any, ...], reported: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.run / "0000:c1:00.0").mkdir()
    (world.run / "0000:c1:00.0/local_cpulist").write_text("48-63,112-127\n")
    near = functools.partial(world.module.node_checks.cores_near, devices=world.run)
    monkeypatch.setattr(world.module.node_checks, "cores_near", near)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: cores)
    monkeypatch.setenv("NODE_RANK", node)
    gpu = SimpleNamespace(**dict(zip(("pci_domain_id", "pci_bus_id", "pci_device_id"), address)))
    sys.modules["torch"].cuda = SimpleNamespace(get_device_properties=lambda _: gpu)  # type: ignore[attr-defined]  # a stand-in
    world.report_far_cores("cuda:0")
    events = world.run / "nodes/0.jsonl"
    message = "rank 0 on node01: its cores are far from its GPU; see `gpu_order` and `cpu_bind` of the site: cores "
    expected = [f"{message}48-63,112-127 are next to it"] if reported else []
    lines = events.read_text().splitlines() if events.exists() else []
    assert [json.loads(line)["message"] for line in lines] == expected
