from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.payload.preflight.diagnosis import SLOW, diagnose, own_problems, slow


def a_node(name: str, **parts: Any) -> dict[str, Any]:
    number = name[-1]
    defaults = {"address": f"10.0.0.{number}", "via": "its route's", "image": "a", "problems": []}
    return {"name": name, **defaults, "unreached": [], "rates": [], **parts}


def test_a_node_with_another_image_is_named() -> None:
    nodes = [a_node("gpu1"), a_node("gpu2", image="b"), a_node("gpu3")]
    assert own_problems(nodes) == ["gpu2: its image is not that of gpu1"]
    assert own_problems([a_node("gpu1", image="b"), *nodes[2:], a_node("gpu4")]) == [
        "gpu1: its image is not that of gpu3"
    ]
    assert own_problems(nodes[:2]) == ["gpu2: its image is not that of gpu1"]  # of two, the first one's counts


def test_no_node_that_came_is_no_problem_of_a_node() -> None:
    assert own_problems([]) == []


def test_addresses_that_other_nodes_cannot_reach() -> None:
    via = "interface docker0 of NCCL_SOCKET_IFNAME"
    nodes = [a_node("gpu1", address="172.17.0.1", via=via), a_node("gpu2", address="172.17.0.1", via=via)]
    assert own_problems(nodes) == [
        f"gpu{number}: other nodes cannot reach its address 172.17.0.1 ({via})" for number in (1, 2)
    ]
    assert own_problems([a_node("gpu1", address="127.0.1.1"), a_node("gpu2")]) == [
        "gpu1: other nodes cannot reach its address 127.0.1.1 (its route's)"
    ]


def test_the_node_of_most_failures_is_named_once() -> None:
    down = [(2, "timed out")]
    nodes = [
        a_node("gpu1", unreached=down),
        a_node("gpu2", unreached=down),
        a_node("gpu3"),
        a_node("gpu4", unreached=down),
    ]
    assert diagnose(nodes, 0) == [
        "gpu1 does not reach gpu3 (10.0.0.3, its route's): timed out; 3 such failures with gpu3",
    ]


def test_two_failures_that_have_nothing_in_common_are_both_named() -> None:
    nodes = [a_node(f"gpu{number}") for number in range(1, 5)]
    nodes[0]["unreached"] = [(1, "No route to host")]
    nodes[2]["unreached"] = [(3, "timed out")]
    assert diagnose(nodes, 0) == [
        "gpu1 does not reach gpu2 (10.0.0.2, its route's): No route to host",
        "gpu3 does not reach gpu4 (10.0.0.4, its route's): timed out",
    ]


RING = [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]
NAMES = ["gpu1", "gpu2", "gpu3"]


def test_a_slow_node_is_told_from_its_partners() -> None:
    rates = [(sender, receiver, 0.05 if 1 in (sender, receiver) else 1.2) for sender, receiver in RING]
    assert slow(NAMES, rates, 0, SLOW) == [
        "gpu2: slow network: sends 0.05 GB/s and receives 0.05 GB/s; other nodes 1.2 GB/s"
    ]
    one_way = [(sender, receiver, 0.05 if receiver == 1 else 1.2) for sender, receiver in RING]
    assert slow(NAMES, one_way, 0, SLOW) == ["gpu2: slow network: receives 0.05 GB/s; other nodes 1.2 GB/s"]


def test_a_slow_network_is_nobodys_fault() -> None:
    rates = [(sender, receiver, 0.1) for sender, receiver in RING]
    assert slow(NAMES, rates, 0, SLOW) == []  # nothing else is known
    assert slow(NAMES, rates, 1.2, SLOW) == ["slow network between 3 of 3 nodes: 0.1 GB/s, 1.2 GB/s expected"]
    assert slow(NAMES, rates, 0.3, SLOW) == []


def test_of_two_nodes_none_is_blamed_alone() -> None:
    assert slow(NAMES[:2], [(0, 1, 0.05), (1, 0, 0.05)], 1.2, SLOW) == [
        "slow network between gpu1 and gpu2: 0.05 GB/s, 1.2 GB/s expected"
    ]


@given(st.integers(5, 40), st.data())
def test_any_slow_node_is_named_and_no_other(count: int, data: st.DataObject) -> None:
    """Whatever the rates of the others are within a factor of two, in the rounds that nodes.py makes."""
    from ctrain_runtime.payload.preflight.diagnosis import edges

    culprit = data.draw(st.integers(0, count - 1))
    distances = [1 + (2**number - 1) % (count - 1) for number in range(max(4, (count - 1).bit_length()))]
    nodes = [a_node(f"gpu{number}") for number in range(count)]
    for receiver, node in enumerate(nodes):
        for distance in distances:
            sender = (receiver - distance) % count
            rate = 0.05 if culprit in (sender, receiver) else data.draw(st.floats(1, 2))
            node["rates"].append((sender, rate))
    [problem] = slow([str(number) for number in range(count)], edges(nodes), 0, SLOW)
    assert problem.startswith(f"{culprit}: slow network")
