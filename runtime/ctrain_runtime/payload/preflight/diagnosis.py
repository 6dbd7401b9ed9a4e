"""What is wrong with which node, from the reports of all of them. Pure."""

import statistics
from collections import Counter
from typing import Any, Dict, List, Tuple

SLOW = 0.25  # of what plain sockets get: their rates scatter


def diagnose(nodes: List[Dict[str, Any]], expected: float) -> List[str]:
    """What is wrong between the nodes. `expected` is in GB/s, 0 if unknown.

    Each has seen what it does not reach (`unreached`: pairs of a node and the reason), and the rates at which it
    received (`rates`: pairs of the sender and GB/s).
    """
    return _unreached(nodes) or slow([node["name"] for node in nodes], edges(nodes), expected, SLOW)


def edges(nodes: List[Dict[str, Any]]) -> List[Tuple[int, int, float]]:
    """All rates that were measured: (sender, receiver, GB/s)."""
    return [(sender, receiver, rate) for receiver, node in enumerate(nodes) for sender, rate in node["rates"]]


def own_problems(nodes: List[Dict[str, Any]]) -> List[str]:
    """What the nodes tell of themselves: `name`, `address`, `via`, `image` and `problems`."""
    if not nodes:
        return []
    problems = [f"{node['name']}: {problem}" for node in nodes for problem in node["problems"]]
    image = Counter(node["image"] for node in nodes).most_common(1)[0][0]  # of a tie, that of the first node
    usual = next(node["name"] for node in nodes if node["image"] == image)
    problems += [f"{node['name']}: its image is not that of {usual}" for node in nodes if node["image"] != image]
    shared = Counter(node["address"] for node in nodes if node["address"])
    for node in nodes:
        if node["address"].startswith("127.") or shared[node["address"]] > 1:
            problems.append(f"{node['name']}: other nodes cannot reach its address {node['address']} ({node['via']})")
    return problems


def _unreached(nodes: List[Dict[str, Any]]) -> List[str]:
    """The nodes that explain most failures to connect, with one failure of each."""
    failures = [(source, target, why) for source, node in enumerate(nodes) for target, why in node["unreached"]]
    problems = []
    while failures:
        blamed = Counter(rank for source, target, _ in failures for rank in (target, source)).most_common(1)[0][0]
        own = [failure for failure in failures if blamed in failure[:2]]
        source, target, why = own[0]
        more = f"; {len(own)} such failures with {nodes[blamed]['name']}" if len(own) > 1 else ""
        address = f"{nodes[target]['address']}, {nodes[target]['via']}"
        problems.append(f"{nodes[source]['name']} does not reach {nodes[target]['name']} ({address}): {why}{more}")
        failures = [failure for failure in failures if failure not in own]
    return problems


def slow(names: List[str], rates: List[Tuple[int, int, float]], expected: float, share: float) -> List[str]:
    """The slow nodes; or the network, if it is no matter of a few nodes. `rates` are (sender, receiver, GB/s).

    A node's rate is the best of its rates: a slow partner is not held against it. Slow: below `share` of usual rates.
    """
    best = {way: [0.0] * len(names) for way in ("sends", "receives")}
    for sender, receiver, rate in rates:
        best["sends"][sender] = max(best["sends"][sender], rate)
        best["receives"][receiver] = max(best["receives"][receiver], rate)
    usual = statistics.median(best["sends"] + best["receives"])
    floor = share * max(usual, expected)
    slow_nodes = {
        name: " and ".join(f"{way} {rates[node]:.3g} GB/s" for way, rates in best.items() if rates[node] < floor)
        for node, name in enumerate(names)
    }
    slow_nodes = {name: how for name, how in slow_nodes.items() if how}
    if slow_nodes and (len(names) == 2 or len(slow_nodes) * 2 > len(names)):
        nodes = " and ".join(names) if len(names) == 2 else f"{len(slow_nodes)} of {len(names)} nodes"
        worst = min(rate for _, _, rate in rates)
        return [f"slow network between {nodes}: {worst:.3g} GB/s, {max(usual, expected):.3g} GB/s expected"]
    return [f"{name}: slow network: {how}; other nodes {usual:.3g} GB/s" for name, how in slow_nodes.items()]
