"""What to do about known causes of failure, by what the rank that failed first has printed. The texts are those of the
libraries; where each is from stands with its test."""

from __future__ import annotations

import re
from collections.abc import Sequence

# In this order: what stands further down may follow from what stands above it.
_KNOWN = (
    (
        r"(?:CUDA|HIP) out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "the GPU's memory is full: use a smaller batch per rank, recompute activations, or shard the model over "
        "more GPUs (FSDP, ZeRO); what a GPT needs: ctrain help estimate",
    ),
    (
        r"(?i)NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime version",
        "the nodes' NVIDIA driver is older than the image's CUDA needs: use an image with an older CUDA; what each "
        "needs: ctrain images NAME",
    ),
    (
        r"Cannot re-initialize CUDA in forked subprocess",
        "a process that has used a GPU was forked: start workers by 'spawn', or use no GPU before they are started",
    ),
    (
        r"(?i)(?:cuda device does not|setup doesn't) support bf(?:loat)?16|bfloat16 is only supported on GPUs",
        "these GPUs do not compute with bfloat16, which began with Ampere (A100): use float16, or newer GPUs: "
        "--partition",
    ),
    (
        r"(?m)(?:ModuleNotFoundError|^\S*python[\d.]*): No module named '?([\w.]+)",
        "the image has no Python module {0}: add its package by a layer of your own (ctrain help user-layers); a "
        "module of yours must lie beside the program, or on PYTHONPATH",
    ),
    (
        r"(libcuda\.so\S*): cannot open shared object file",
        "the container has no NVIDIA driver: the node has no GPU, or the image is not for GPUs",
    ),
    (
        r"([\w.+-]+\.so[\w.]*): cannot open shared object file",
        "the image has no library {0}: use an image that has it, or build one with the package it is in",
    ),
    (
        r"no loop devices available|failed to find loop device|squashfs image mounts are not authorized",
        "the engine mounts no user layers and SquashFS data sets: Singularity does so only set-uid root, as a user "
        "other than root, with `allow kernel squashfs`; use Apptainer, or data in a directory: ctrain help engines",
    ),
    (
        r"Squashfs image uses (\w+) compression, this version supports only",
        "the node's engine does not read images that are compressed by {0}: build the image with --build-arg "
        "COMPRESSION=gzip, which every engine reads (ctrain help images)",
    ),
    (
        r"failed to mount squashfs filesystem: invalid argument",
        "the node's kernel does not mount the image: it is incomplete (ctrain store verify), or compressed by what the "
        "kernel does not read: every kernel reads those built with --build-arg COMPRESSION=gzip (ctrain help images)",
    ),
    (
        r"No space left on device|Disk quota exceeded|unable to write to file </torch_",
        "a disk, a quota or shared memory is full: compare df -h of the run directory, of /tmp and of /dev/shm on "
        "the node",
    ),
    (
        r"Bus error|unable to mmap \d+ bytes from file </torch_",
        "shared memory (/dev/shm) is full, or a file that the program has mapped was lost: use fewer DataLoader "
        "workers",
    ),
    (
        r"Too many open files|received 0 items of ancdata",
        "the limit of open files is reached: raise it (ulimit -n), use fewer DataLoader workers, or call"
        " torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    (
        r"EADDRINUSE|[Aa]ddress already in use",
        "another process of the node has the port: leave MASTER_PORT to ctrain, which gives each run its own, and "
        "start again",
    ),
    (
        r"appears to have been direct launched|OPAL ERROR: \w[\w ]* in file (?:ext|pmix)\w*_client\.c",
        "the image's MPI did not reach the scheduler's PMIx, whatever it was built with: compare them by ctrain doctor "
        "--image IMAGE; without it: --launcher gloo for Horovod, env or torchrun for programs that need no MPI",
    ),
    (
        r"Watchdog caught collective operation timeout",
        "a rank did not come to a collective in time: look which one stopped first (logs/); work of one rank alone,"
        " such as an evaluation, needs a longer timeout in init_process_group",
    ),
    (
        r"terminate called without an active exception",
        "torch aborts like this when a program ends without torch.distributed.destroy_process_group(), or while a "
        "model of DistributedDataParallel outlives that: train in a function, and call it at the end",
    ),
)


_LINES = 60  # the end of a program's output: further up may stand what it has overcome


def advise(lines: Sequence[str]) -> str:
    """The remedy of the first known cause at the end of what a program has printed; "" without one."""
    text = "\n".join(lines[-_LINES:])
    for pattern, remedy in _KNOWN:
        if match := re.search(pattern, text):
            return remedy.format(*match.groups())
    return ""
