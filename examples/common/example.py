"""What every example shares: its place among the ranks, metrics.jsonl, and an end that cannot abort.

    sys.path.extend([str(Path(__file__).resolve().parents[1] / "common"), "/opt/ctrain/examples/common"])
    from example import Metrics, begin, finish

    def main() -> int:
        world = begin("torch")                   # or "horovod"
        metrics = Metrics(world)
        ...
        metrics.write(step=1, steps=20, loss=2.5)
        return 0

    if __name__ == "__main__":
        finish(main)

The second path serves copies of an example, which run in an image that has this file.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn, Optional

import torch

EXIT_WRONG_INPUT = 2
EXIT_WRONG_WORLD = 3


class InputError(ValueError):
    """A setting or a file cannot work: the program ends with its message and code 2."""


class World(NamedTuple):
    """One rank among `size`, `local_rank` on its node, and the device that is its own."""

    rank: int
    size: int
    local_rank: int
    device: torch.device

    def say(self, text: str) -> None:
        """Prints from rank 0 only: the lines of many ranks interleave into noise."""
        if self.rank == 0:
            print(text, flush=True)


def run_dir() -> Path:
    """The directory for metrics.jsonl and checkpoint/: that of the run, or the current one without ctrain."""
    return Path(os.environ.get("CTRAIN_RUN_DIR", "."))


def resume_dir() -> Optional[Path]:
    """The checkpoint directory of the run to resume (`ctrain run --resume`), or None."""
    return Path(os.environ["CTRAIN_RESUME"]) if os.environ.get("CTRAIN_RESUME") else None


def begin(library: str = "torch") -> World:
    """Joins the other ranks by torch.distributed (NCCL on GPUs, else Gloo) or by "horovod".

    Ends the program with code 3 if the ranks that meet are not those that were launched: N ranks that each train alone
    look like success.
    """
    warnings.filterwarnings("ignore", category=FutureWarning)  # meant for those who maintain the libraries
    launched = int(os.environ.get("WORLD_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", "1")))
    if library == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank, size, local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
    else:
        import torch.distributed as dist

        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if torch.cuda.is_available():  # before NCCL starts, which would take GPU 0 for all ranks of a node
            torch.cuda.set_device(local_rank)
        if "RANK" not in os.environ:  # no launcher: a world of one
            alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
            os.environ.update(alone)
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
    if size != launched:
        print(
            f"{Path(sys.argv[0]).name}: {launched} ranks were launched, but {library} sees {size} (process "
            f"{os.getpid()} on {socket.gethostname()}); choose another launcher",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(EXIT_WRONG_WORLD)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    return World(rank, size, local_rank, device)


class Metrics:
    """metrics.jsonl: one JSON object per line, on disk as soon as it is known. Only rank 0 writes."""

    def __init__(self, world: World, directory: Optional[Path] = None) -> None:
        self.file = None
        if world.rank == 0:
            path = (directory or run_dir()) / "metrics.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("a", buffering=1)

    def write(self, **values: float) -> None:
        if self.file:
            self.file.write(json.dumps(values) + "\n")


def finish(main: Callable[[], int]) -> NoReturn:
    """Runs `main` and ends the process with the exit code that it returns on all ranks: every example ends here.

    An interpreter that finalizes while a thread of Gloo takes its lock aborts (SIGABRT, code 134), now and then, after
    correct training. So what was registered for the end runs (MPI_Finalize of Horovod and mpi4py), and then the process
    ends without finalizing. A rank that failed leaves at once: MPI_Finalize would wait for the others.
    """
    try:
        code = main()
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # rank 0 keeps the store that the others may still need
        atexit._run_exitfuncs()
    except InputError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        code = EXIT_WRONG_INPUT
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
