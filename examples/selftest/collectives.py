"""The collective operations of torch.distributed, MPI and Horovod, and what each must return on each rank.

With n ranks, rank r contributes the numbers r * n, r * n + 1, ..., r * n + n - 1; the last rank is the root. They are
whole and fit in float64, so results are compared exactly, and no two ranks could be mistaken for each other.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist


def contribution(rank: int, size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float64) + rank * size


def expected_results(rank: int, size: int) -> dict[str, Optional[torch.Tensor]]:
    """By collective, what rank must receive; None where it receives nothing."""
    root = size - 1
    first_of_each = torch.arange(size, dtype=torch.float64) * size
    sums = torch.arange(size, dtype=torch.float64) * size + size * size * (size - 1) / 2
    return {
        "all-reduce": sums,
        "reduce": sums if rank == root else None,
        "broadcast": contribution(root, size),
        "all-gather": first_of_each,
        "scatter": contribution(root, size)[rank : rank + 1],
        "reduce-scatter": sums[rank : rank + 1],
        "all-to-all": first_of_each + rank,
    }


class TorchCollectives:
    """Each library has a method per collective; it gets this rank's numbers, and returns what the rank received."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.name = f"torch.distributed ({dist.get_backend()})"

    def all_reduce(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        dist.all_reduce(mine)
        return mine

    def reduce(self, mine: torch.Tensor, root: int) -> torch.Tensor:
        dist.reduce(mine, root)
        return mine

    def broadcast(self, mine: torch.Tensor, root: int) -> torch.Tensor:
        dist.broadcast(mine, root)
        return mine

    def all_gather(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        received = list(torch.empty_like(mine).split(1))
        dist.all_gather(received, mine[:1])
        return torch.cat(received)

    def scatter(self, mine: torch.Tensor, root: int) -> torch.Tensor:
        received = torch.empty_like(mine[:1])
        dist.scatter(received, list(mine.split(1)) if self.rank == root else None, src=root)
        return received

    def reduce_scatter(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        received = torch.empty_like(mine[:1])
        dist.reduce_scatter(received, list(mine.split(1)))
        return received

    def all_to_all(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        received = torch.empty_like(mine)
        dist.all_to_all_single(received, mine)
        return received


class MpiCollectives:
    """mpi4py in main memory: whether an MPI can read a GPU's memory depends on how it was built."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.name = f"mpi4py ({MPI.get_vendor()[0]})"

    def all_reduce(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        received = torch.empty(self.size, dtype=mine.dtype)
        self.comm.Allreduce(mine.cpu().numpy(), received.numpy())
        return received

    def reduce(self, mine: torch.Tensor, root: int) -> torch.Tensor:
        received = torch.empty(self.size, dtype=mine.dtype)
        self.comm.Reduce(mine.cpu().numpy(), received.numpy(), root=root)
        return received

    def broadcast(self, mine: torch.Tensor, root: int) -> torch.Tensor:
        received = mine.cpu()
        self.comm.Bcast(received.numpy(), root=root)
        return received

    def all_gather(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        received = torch.empty(self.size, dtype=mine.dtype)
        self.comm.Allgather(mine[:1].cpu().numpy(), received.numpy())
        return received

    def scatter(self, mine: torch.Tensor, root: int) -> torch.Tensor:
        received = torch.empty(1, dtype=mine.dtype)
        self.comm.Scatter(mine.cpu().numpy(), received.numpy(), root=root)
        return received

    def reduce_scatter(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        received = torch.empty(1, dtype=mine.dtype)
        self.comm.Reduce_scatter_block(mine.cpu().numpy(), received.numpy())
        return received

    def all_to_all(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        received = torch.empty(self.size, dtype=mine.dtype)
        self.comm.Alltoall(mine.cpu().numpy(), received.numpy())
        return received


class HorovodCollectives:
    """Horovod has no reduce and no scatter: data-parallel training needs neither."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        hvd.init()
        self.hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.name = f"horovod ({'MPI' if hvd.mpi_enabled() else 'Gloo'})"

    def all_reduce(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        return self.hvd.allreduce(mine, op=self.hvd.Sum)

    def broadcast(self, mine: torch.Tensor, root: int) -> torch.Tensor:
        return self.hvd.broadcast(mine, root)

    def all_gather(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        return self.hvd.allgather(mine[:1])

    def reduce_scatter(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        return self.hvd.reducescatter(mine, op=self.hvd.Sum)

    def all_to_all(self, mine: torch.Tensor, _root: int) -> torch.Tensor:
        return self.hvd.alltoall(mine)


LIBRARIES = {"torch": TorchCollectives, "mpi4py": MpiCollectives, "horovod": HorovodCollectives}


def skip_reason(module: str) -> Optional[str]:
    """Why a library is left out, or None. Asked before it is imported: MPI ends a process that no MPI has started."""
    if find_spec(module) is None:
        return "this image does not have it"
    started_by_mpi = "OMPI_COMM_WORLD_SIZE" in os.environ
    if module == "mpi4py" and not started_by_mpi:
        return "the ranks were not started by MPI: use --launcher mpi"
    if module == "horovod" and not started_by_mpi and os.environ.get("HOROVOD_CONTROLLER") != "gloo":
        return "the ranks were started neither by MPI nor for Horovod's Gloo: use --launcher mpi or gloo"
    return None


def check(library: Any, device: torch.device) -> dict[str, str]:
    """By collective: "ok", "-" if the library has none, else what went wrong on this rank."""
    size, launched = library.size, dist.get_world_size()
    if (library.rank, size) != (dist.get_rank(), launched):
        return {"world": f"rank {library.rank} of {size}, not {dist.get_rank()} of {launched}"}
    results = {}
    for name, expected in expected_results(library.rank, size).items():
        operation = getattr(library, name.replace("-", "_"), None)
        results[name] = _outcome(operation, library.rank, size, expected, device) if operation else "-"
    return results


def _outcome(operation: Callable, rank: int, size: int, expected: Optional[torch.Tensor], device: torch.device) -> str:
    try:
        received = operation(contribution(rank, size).to(device), size - 1)
    except (RuntimeError, ValueError) as error:  # fails the test as a wrong value does; others go on
        return f"{type(error).__name__}: {error}".splitlines()[0]
    if expected is None or torch.equal(received.cpu(), expected):
        return "ok"
    return f"received {received.tolist()[:8]}, not {expected.tolist()[:8]}"
