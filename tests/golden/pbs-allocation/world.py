"""Counts the ranks that meet in the image: by its MPI, or where torch's processes meet.

Usage: world.py mpi|env NUMBER; fails if the count is another. The scheduler's count proves nothing: an MPI that does
not understand how it was started runs as many worlds of one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import datetime
import os
import sys
import time
from typing import Optional

TIMEOUT_SECONDS = 60
POLL_SECONDS = 0.05


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


def torch_ranks(expected: int) -> Optional[int]:
    """How many ranks meet at MASTER_ADDR and MASTER_PORT, as init_method "env://" makes them (torch's documentation of
    torch.distributed); None in an image without torch. Back ends are not tried: which one the program uses is unknown.
    """
    try:
        from torch.distributed.rendezvous import rendezvous
    except (ImportError, OSError):  # or a library of it is missing: no program of this image uses it
        return None
    store, rank, _ = next(rendezvous("env://", timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS)))
    deadline = time.monotonic() + TIMEOUT_SECONDS

    def count(key: str, mine: int) -> int:
        ranks = int(store.add(key, mine))
        while ranks < expected and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            ranks = int(store.add(key, 0))
        return ranks

    met = count("met", 1)
    if rank == 0:  # the store lives in this process: the others have to be done with it
        count("left", 1)
    else:
        store.add("left", 1)
    return met


def main() -> int:
    kind, expected = sys.argv[1], int(sys.argv[2])
    who = {
        "mpi": "MPI in the image",
        "env": f"torch at {os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}",
    }[kind]
    try:
        ranks = mpi_ranks() if kind == "mpi" else torch_ranks(expected)
    except Exception as error:  # whatever the library raises: it does not work here
        print(f"ctrain: {who}: {error}", flush=True)
        return 1
    if ranks not in (None, expected):
        print(f"ctrain: {who} sees {ranks} ranks, but {expected} were started", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
