"""What every example shares: its place among the ranks, metrics.jsonl, and an end that cannot abort.

    sys.path.insert(1, "/opt/ctrain/examples/common")
    sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
    from example import Metrics, begin, finish

    def main() -> int:
        world = begin("torch")                   # or "horovod", "tensorflow"
        metrics = Metrics(world)
        ...
        metrics.write(step=1, steps=20, loss=2.5)
        return 0

    if __name__ == "__main__":
        finish(main)

The first path serves copies of an example, which run in an image that has this file. Both precede those of packages, of
which some have an `example`, too. A program gets the framework that it names, and no other.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Optional

# Programs import some of these from here.
from ctrain_program import EXIT_SAVED, MetricsFile, beat, is_restarted, resume_dir, run_dir, stopping  # noqa: F401

EXIT_WRONG_INPUT = 2
EXIT_WRONG_WORLD = 3


class InputError(ValueError):
    """A setting or a file cannot work: the program ends with its message and code 2."""


class World(NamedTuple):
    """One rank among `size`, `local_rank` on its node, and the torch.device that is its own: None in TensorFlow."""

    rank: int
    size: int
    local_rank: int
    device: Any = None

    def say(self, text: str) -> None:
        """Prints from rank 0 only: the lines of many ranks interleave into noise."""
        if self.rank == 0:
            print(text, flush=True)


def begin(library: str = "torch") -> World:
    """Joins the other ranks by "torch" (torch.distributed with NCCL on GPUs, else Gloo), or by Horovod: "horovod" for
    PyTorch, "tensorflow" for TensorFlow and Keras.

    Ends the program with code 3 if the ranks that meet are not those that were launched: N ranks that each train alone
    look like success.
    """
    warnings.filterwarnings("ignore", category=FutureWarning)  # meant for those who maintain the libraries
    launched = int(os.environ.get("WORLD_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", "1")))
    if library == "torch":
        rank, size, local_rank = _join_by_torch()
    else:
        hvd = import_module("horovod.torch" if library == "horovod" else "horovod.tensorflow")
        hvd.init()
        rank, size, local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
    if size != launched:
        print(
            f"{Path(sys.argv[0]).name}: {launched} ranks were launched, but {library} sees {size} (process "
            f"{os.getpid()} on {socket.gethostname()}); choose another launcher",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(EXIT_WRONG_WORLD)
    if library == "tensorflow":
        _pin_tensorflow(local_rank)
        return World(rank, size, local_rank)
    return World(rank, size, local_rank, _pin_torch(local_rank))


def _join_by_torch() -> tuple[int, int, int]:
    import torch
    import torch.distributed as dist

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():  # before NCCL starts, which would take GPU 0 for all ranks of a node
        torch.cuda.set_device(local_rank)
    if "RANK" not in os.environ:  # no launcher: a world of one
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        os.environ.update(alone)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return dist.get_rank(), dist.get_world_size(), local_rank


def _pin_torch(local_rank: int) -> Any:
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _pin_tensorflow(local_rank: int) -> None:
    """One GPU and the cores of one rank: TensorFlow does not read OMP_NUM_THREADS, and takes the memory of all GPUs."""
    import tensorflow as tf

    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[local_rank], "GPU")
    if threads := int(os.environ.get("OMP_NUM_THREADS", "0")):
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


def cores() -> int:
    """This rank's share of the node's cores, which ctrain names. Without it, the cores that the process is bound to,
    which may be one where a scheduler binds each task."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdigit() else len(os.sched_getaffinity(0))


class Metrics:
    """metrics.jsonl: one JSON object per line, on disk as soon as it is known. Only rank 0 writes. The heartbeat of
    each rank has the step."""

    def __init__(self, world: World, directory: Optional[Path] = None) -> None:
        self.file = None
        self.on_gpu = getattr(world.device, "type", "") == "cuda"
        if world.rank == 0:
            path = (directory or run_dir()) / "metrics.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = MetricsFile(path)

    def write(self, **values: Any) -> None:
        if "step" in values:
            beat(int(values["step"]))
        if self.file:
            if self.on_gpu:
                values["memory"] = sys.modules["torch"].cuda.max_memory_allocated()  # of this rank, the most so far
            self.file.append(values)


def finish(main: Callable[[], int]) -> NoReturn:
    """Runs `main` and ends the process with the exit code that it returns on all ranks: every example ends here.

    An interpreter that finalizes while a thread of Gloo takes its lock aborts (SIGABRT, code 134), now and then, after
    correct training. So what was registered for the end runs (Horovod's MPI_Finalize), and mpi4py's, which only an
    interpreter that finalizes would run; then the process ends. To mpirun, ranks without MPI_Finalize are failed ones.
    A rank that failed leaves at once: MPI_Finalize would wait for the others.
    """
    try:
        code = main()
        distributed = sys.modules.get("torch.distributed")
        if distributed and distributed.is_initialized():
            distributed.barrier()  # rank 0 keeps the store that the others may still need
        atexit._run_exitfuncs()
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi and mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.Finalize()
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
