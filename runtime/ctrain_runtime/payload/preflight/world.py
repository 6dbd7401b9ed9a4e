"""Counts the ranks that meet in the image, by its MPI or where torch's processes meet; then measures an all-reduce.

Usage: world.py mpi|env NUMBER BACKEND EXPECTED NETWORK as each rank; fails if the count is another, the bandwidth is
far below EXPECTED (GB/s; 0: unknown), or NCCL does not choose NETWORK ("": any but sockets beside a faster adapter).
The scheduler's count proves nothing: an MPI that does not understand how it was started runs as many worlds of one.
"""

import contextlib
import ctypes
import ctypes.util
import datetime
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Iterator, List, Optional

import diagnosis
import nccl_log
import node_checks
import nodes

TIMEOUT_SECONDS = 60
HANG_SECONDS = 60  # NCCL on one node is done in a second or two
RANKS_PER_SECOND = 20  # that connect on several nodes, at least
POLL_SECONDS = 0.05
SLOW = 0.5  # of the expected bandwidth, or of other nodes': less is another transport, or a broken link


def mpi_ranks() -> Optional[int]:
    """The size of MPI_COMM_WORLD; None in an image without MPI."""
    try:
        from mpi4py import MPI
    except ImportError:
        return open_mpi_ranks()
    return int(MPI.COMM_WORLD.Get_size())


def open_mpi_ranks() -> Optional[int]:
    """The same by Open MPI's C interface: MPI_COMM_WORLD is the address of a symbol of its library (mpi.h)."""
    name = ctypes.util.find_library("mpi")
    if not name:
        return None
    library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    try:
        world = ctypes.byref(ctypes.c_void_p.in_dll(library, "ompi_mpi_comm_world"))
    except ValueError:
        return None  # another MPI, whose constants are not known here
    size = ctypes.c_int()
    library.MPI_Init(None, None)
    library.MPI_Comm_size(world, ctypes.byref(size))
    library.MPI_Finalize()
    return size.value


def torch_ranks(expected: int, store: Any) -> int:
    """How many ranks meet at MASTER_ADDR and MASTER_PORT."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    ranks = int(store.add("met", 1))
    while ranks < expected and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        ranks = int(store.add("met", 0))
    return ranks


def torch_store() -> Any:
    """The store of init_method "env://" (torch.distributed's documentation); None in an image without torch."""
    try:
        from torch.distributed.rendezvous import rendezvous
    except (ImportError, OSError):  # or a library of it is missing: no program of this image uses it
        return None
    return next(rendezvous("env://", timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS)))[0]


def report_far_cores(device: Any) -> None:
    """Report a rank of the first node whose cores are far from its GPU: all that it copies takes a detour."""
    import torch

    gpu = torch.cuda.get_device_properties(device)
    domain, bus, number = (getattr(gpu, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    if os.environ["NODE_RANK"] != "0" or None in (domain, bus, number):  # older versions of torch do not tell
        return
    near = node_checks.cores_near(f"{domain:04x}:{bus:02x}:{number:02x}.0", os.sched_getaffinity(0))
    if near:
        hint = "its cores are far from its GPU; see `gpu_order` and `cpu_bind` of the site"
        nodes.report(
            "measured", f"rank {os.environ['RANK']} on {nodes.node_name()}: {hint}: cores {near} are next to it"
        )


def longest_seconds(ranks: int, ranks_per_node: int) -> float:
    """What NCCL may take to connect all ranks and to measure."""
    return HANG_SECONDS + (0 if ranks == ranks_per_node else ranks / RANKS_PER_SECOND)


@contextlib.contextmanager
def ends_in_time(backend: str, ranks: int, ranks_per_node: int) -> Iterator[None]:
    """End this rank with a message if what is done within hangs in NCCL: it raises no exception, and torch's own
    watchdog aborts the process without a word of what to do."""
    seconds = longest_seconds(ranks, ranks_per_node)
    problem = f"nccl: the first all-reduce of {ranks} ranks is not done after {seconds:g} s"
    if ranks == ranks_per_node and os.environ.get("NCCL_P2P_DISABLE") != "1":
        # Reported for containers on machines with several GPUs (apptainer#2729, open; not run here: it needs GPUs).
        problem += ". If their GPUs cannot reach each other's memory from the container: --env NCCL_P2P_DISABLE=1"

    def give_up() -> None:
        nodes.report("failed", f"{nodes.node_name()}: {problem}")
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    if backend == "nccl":
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def bandwidth_problems(store: Any, backend: str, expected: float, network: str) -> List[str]:
    """Measure an all-reduce of all ranks, and report it; on rank 0 what is wrong with it."""
    import collectives
    from torch import distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = Path.home() / f"nccl.{rank}.log"  # on the node's own disk
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=str(log))
    device = collectives.device_of(backend)
    if backend == "nccl":
        report_far_cores(device)
    ranks_per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    # torch's own watchdog, which would end the rank without a message, must not be the first.
    longest = longest_seconds(ranks, ranks_per_node) + TIMEOUT_SECONDS
    patience = datetime.timedelta(seconds=longest if backend == "nccl" else TIMEOUT_SECONDS)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=patience)
    with ends_in_time(backend, ranks, ranks_per_node):
        line = collectives.check_bandwidth(backend, device)
    text = log.read_text(errors="replace") if log.exists() else ""
    chosen = nccl_log.network(text)
    adapters = node_checks.fast_adapters() if ranks > ranks_per_node else []
    wrong = nccl_log.network_problem(text, network, adapters)
    store.set(f"network {rank}", f"{nodes.node_name()} {wrong}")
    is_slow = line["bus"] < SLOW * expected  # all ranks have the same times
    rates = collectives.rates_in_pairs(store, device, int(line["size"]), ranks_per_node) if is_slow else []
    dist.barrier()
    if rank:
        return []
    wanted = f" ({expected:.3g} expected)" if expected else ""
    over = f"{backend} over {chosen}" if chosen else backend
    measured = f"{over}: all-reduce of {line['size'] / 1e6:.0f} MB at {line['bus']:.3g} GB/s bus bandwidth{wanted}"
    nodes.report("measured", measured)
    seen = [store.get(f"network {number}").decode().partition(" ") for number in range(ranks)]
    wrong_nodes = {name: why for name, _, why in seen if why}
    if wrong_nodes or not is_slow:
        return [f"{name}: {why}" for name, why in wrong_nodes.items()]
    names = [name for name, _, _ in seen[::ranks_per_node]]
    between = " and ".join(names) if len(names) == 2 else f"all {len(names)} nodes"
    return diagnosis.slow(names, rates, 0, SLOW) or [f"slow network between {between}: {measured}"]


def main() -> int:
    kind, expected, backend, bandwidth, network = sys.argv[1:]
    who = {
        "mpi": "MPI in the image",
        "env": f"torch at {os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}",
    }[kind]
    try:
        ranks = mpi_ranks() if kind == "mpi" else None
        store = torch_store() if ranks in (None, int(expected)) else None
        if kind == "env" and store:
            ranks = torch_ranks(int(expected), store)
        if ranks not in (None, int(expected)):
            hint = ". Pass --launcher gloo for Horovod, or env if the program needs no MPI" if kind == "mpi" else ""
            nodes.report("failed", f"{who} sees {ranks} ranks, but {expected} were started{hint}")
            return 1
        who = backend
        problems = bandwidth_problems(store, backend, float(bandwidth), network) if store else []
    except Exception as error:  # whatever the library raises: it does not work here
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        nodes.report("failed", f"{nodes.node_name()}: {who}: {reason}")
        return 1
    for problem in problems:
        nodes.report("failed", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    result = main()
    sys.stdout.flush()
    os._exit(result)  # threads of gloo abort while the interpreter ends ("terminate called ...")
