"""Asks the image's own MPI how many ranks it sees. Usage: world.py NUMBER; fails if it is another.

The scheduler's count proves nothing: an MPI that does not understand how it was started runs as many worlds of one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from typing import Optional


def world_size() -> Optional[int]:
    """The size of MPI_COMM_WORLD; None in an image without MPI."""
    try:
        from mpi4py import MPI
    except ImportError:
        return open_mpi_world_size()
    return int(MPI.COMM_WORLD.Get_size())


def open_mpi_world_size() -> Optional[int]:
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


def main() -> int:
    expected, size = int(sys.argv[1]), world_size()
    if size not in (None, expected):
        print(f"ctrain: MPI in the image sees a world of {size}, but {expected} ranks were started", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
