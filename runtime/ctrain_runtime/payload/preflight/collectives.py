"""Collective operations of torch.distributed, timed as nccl-tests does.

Usage: collectives.py SIZE,... OPERATION,... as each rank of a job, which `ctrain bench` starts. Rank 0 prints a
table, and writes the same to bench.jsonl in the run directory.

Algorithm bandwidth is bytes per second; bus bandwidth is that times a factor of the number of ranks, so that it can be
compared with the links' whatever their number (nccl-tests, doc/PERFORMANCE.md). A size is the whole array's: of the
output of an all-gather, of the input of a reduce-scatter.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist

SECONDS = 0.5  # to repeat an operation for
REPEATS = 100
PAIRINGS = 4
CHECK_BYTES = {"gloo": 1 << 26, "nccl": 1 << 28}


def bus_factor(name: str, ranks: int) -> float:
    """The bytes that a link carries, for each of the array."""
    if name == "broadcast":
        return 1.0
    return (2 if name == "all-reduce" else 1) * (ranks - 1) / ranks


def operation(name: str, size: int, device: Any) -> Callable[[], Any]:
    """An operation on float32 arrays of `size` bytes in all, as a call."""
    ranks = dist.get_world_size()
    part = max(1, size // 4 // ranks)
    whole = torch.ones(part * ranks, device=device)
    piece, other = torch.ones(part, device=device), torch.ones_like(whole)
    return {
        "all-reduce": lambda: dist.all_reduce(whole, op=dist.ReduceOp.MAX),  # a sum would grow beyond all numbers
        "all-gather": lambda: dist.all_gather_into_tensor(whole, piece),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(piece, whole),
        "all-to-all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
    }[name]


def seconds_of(call: Callable[[], Any], device: Any) -> float:
    """The time of a call, the same on all ranks: that of the slowest. The first one sets up connections."""
    _slowest(call, 1, device)
    repeats = max(1, min(REPEATS, int(SECONDS / _slowest(call, 1, device))))
    return _slowest(call, repeats, device) / repeats


def _slowest(call: Callable[[], Any], repeats: int, device: Any) -> float:
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    _finish(device)
    taken = torch.tensor([time.perf_counter() - begin], device=device)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return float(taken)


def _finish(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(name: str, size: int, device: Any) -> Dict[str, Any]:
    """One line of the sweep: `size` in bytes, `seconds`, and bandwidths in GB/s (1e9 bytes per second)."""
    seconds = seconds_of(operation(name, size, device), device)
    algorithm = size / seconds / 1e9
    bus = algorithm * bus_factor(name, dist.get_world_size())
    return {"operation": name, "size": size, "seconds": seconds, "algorithm": algorithm, "bus": bus}


def row(line: Dict[str, Any]) -> str:
    """A line of the table, each number in a unit of its size."""
    numbers = scaled(line["size"], "B"), f"{line['seconds'] * 1e3:.3f} ms"
    rates = (scaled(line[kind] * 1e9, "B/s") for kind in ("algorithm", "bus"))
    return f"{line['operation']:<16}" + "".join(f"{number:>14}" for number in (*numbers, *rates))


def scaled(number: float, unit: str) -> str:
    """As in 1.024 kB, 291.000 MB/s."""
    for prefix in "", "k", "M":
        if number < 1000:
            return f"{number:.3f} {prefix}{unit}"
        number /= 1000
    return f"{number:.3f} G{unit}"


def check_bandwidth(backend: str, device: Any) -> Dict[str, Any]:
    """An all-reduce of real size, or of what a slow network moves in about a second."""
    size = 1 << 20
    line = measure("all-reduce", size, device)
    while size < CHECK_BYTES[backend] and line["seconds"] * 8 < SECONDS:
        size *= 8
        line = measure("all-reduce", size, device)
    return line


def rates_in_pairs(store: Any, device: Any, size: int, ranks_per_node: int) -> List[Tuple[int, int, float]]:
    """On rank 0, the rates at which first ranks of nodes exchange `size` bytes: (sender, receiver, GB/s).

    They show whose link is slow, where an all-reduce is as slow as the slowest. In each round, nodes whose numbers have
    the same sum are peers (the circle method): a slow node is slow in all rounds, its peers are fast in others.
    """
    nodes, (own, local) = dist.get_world_size() // ranks_per_node, divmod(dist.get_rank(), ranks_per_node)
    sent, received = torch.ones(size // 4, device=device), torch.ones(size // 4, device=device)
    for number in range(PAIRINGS):
        dist.barrier()  # else a node would wait for a peer that is still busy with a slow one
        peer = (number - own) % nodes
        if local or peer == own:
            continue
        other = peer * ranks_per_node
        exchange = [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]
        for begin in (time.perf_counter() for _ in range(2)):  # the first one sets up the connection
            for request in dist.batch_isend_irecv(exchange):
                request.wait()
            _finish(device)
            store.set(f"rate {number} {own}", str(size / (time.perf_counter() - begin) / 1e9))
    dist.barrier()
    pairs = [] if dist.get_rank() else [(number, node) for number in range(PAIRINGS) for node in range(nodes)]
    met = [(number, (number - node) % nodes, node) for number, node in pairs if (number - 2 * node) % nodes]
    return [(peer, node, float(store.get(f"rate {number} {node}"))) for number, peer, node in met]


def device_of(backend: str) -> Any:
    """The device of this rank, which becomes the current one."""
    if backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def link_gb_s(backend: str) -> float:
    """The rate of this node's links as the kernel knows it, in GB/s; 0 if it does not: all InfiniBand ports for NCCL,
    else the interface of GLOO_SOCKET_IFNAME or the first one."""
    ports = Path("/sys/class/infiniband").glob("*/ports/*/rate") if backend == "nccl" else ()
    rates = [float(rate.read_text().split()[0]) for rate in ports]  # as in "200 Gb/sec (4X HDR)"
    if rates:
        return sum(rates) / 8
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    name = next((name for name in names if name in wanted), names[0] if names else "lo")
    try:
        return max(0, int(Path(f"/sys/class/net/{name}/speed").read_text())) / 8e3  # Mbit/s; -1 if unknown
    except (OSError, ValueError):
        return 0.0


def leave(code: int) -> None:
    """End the process at once: threads of gloo abort while the interpreter ends ("terminate called ...")."""
    sys.stdout.flush()
    os._exit(code)


def main() -> None:
    sizes, names = [int(size) for size in sys.argv[1].split(",")], sys.argv[2].split(",")
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    device = device_of(backend)
    dist.init_process_group(backend)
    first = dist.get_rank() == 0
    link = {"link": link_gb_s(backend), "ranks": dist.get_world_size(), "backend": backend}
    if first:
        print(f"{'operation':<16}{'size':>14}{'time':>14}{'algorithm':>14}{'bus':>14}", flush=True)
    for name in names:
        for size in sizes:
            line = measure(name, size, device)
            if first:
                print(row(line), flush=True)
                with Path(os.environ["CTRAIN_RUN_DIR"], "bench.jsonl").open("a") as file:
                    file.write(json.dumps({**line, **link}) + "\n")
    leave(0)


if __name__ == "__main__":
    main()
