"""Starts the processes of a torch.distributed program; they meet in a file, so no port is taken."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(step: Callable[[int], None], size: int, backend: str) -> None:
    """Run step(rank) in `size` processes. Raises if one of them fails."""
    # Forked, they have all modules that this process has imported, in seconds less each; CUDA needs new ones.
    method = "fork" if backend == "gloo" else "spawn"
    with tempfile.TemporaryDirectory() as directory:
        arguments = (step, size, backend, f"file://{directory}/meet")
        mp.start_processes(_worker, arguments, size, start_method=method)


def _worker(rank: int, step: Callable[[int], None], size: int, backend: str, meeting: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size)
    step(rank)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # a gloo thread may abort an interpreter that ends
