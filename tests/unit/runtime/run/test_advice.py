"""Causes that are recognised, by what the libraries print: recorded here, or as quoted in public reports."""

from __future__ import annotations

import pytest

from ctrain_runtime.run.advice import advise

OUT_OF_MEMORY = (  # pytorch/pytorch#16417
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of "
    "23.65 GiB of which 11.06 MiB is free."
)
BIND = (  # meta-pytorch/torchtune#392
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. The "
    "server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."
)
WATCHDOG = (  # NVIDIA/Megatron-LM#1207
    "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 "
    "milliseconds before timing out."
)
DRIVER = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."  # serend1p1ty/SeqNet#36
FORK = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use"
BFLOAT16 = "RuntimeError: Current CUDA Device does not support bfloat16. Please switch dtype to float16."  # LAVIS#91
BF16 = "ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0"
VLLM = "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0."  # vllm#946
SHARED_MEMORY = "RuntimeError: unable to write to file </torch_15769_1517813162>"  # MIC-DKFZ/nnUNet#294
MAPPED = "RuntimeError: unable to mmap 280 bytes from file </torch_59534_1208885928>: Cannot allocate memory (12)"
FILES = "OSError: [Errno 24] Too many open files: '/dev/null'"
ANCDATA = "RuntimeError: received 0 items of ancdata"  # pytorch/pytorch#973
ABORT = "terminate called without an active exception"  # pytorch/pytorch#190489
NO_MODULE = "/usr/bin/python3: No module named deepspeed.launcher"
DIRECT = 'The application appears to have been direct launched using "srun",'  # open-mpi/ompi#12146
OPAL = "[nid200247:2144171] OPAL ERROR: Unreachable in file ext3x_client.c at line 111"
LOOP = (  # recorded with SingularityCE 4.5.1 in a user namespace
    "FATAL:   container creation failed: mount /proc/self/fd/9->/opt/singularity-ce/var/singularity/mnt/session/"
    "data-images/0 error: while mounting image /proc/self/fd/9: failed to find loop device: could not attach image"
    " file to loop device: no loop devices available"
)
LOOP_OF_ROOT = LOOP.replace(  # for root, there
    "no loop devices available", "failed to set loop flags on loop device: operation not permitted"
)
KERNEL_SQUASHFS = (  # recorded with SingularityCE 4.5.1, set-uid root and with `allow kernel squashfs = no`
    "FATAL:   container creation failed: while adding data squashfs partition from /srv/data.sqsh: "
    "squashfs image mounts are not authorized"
)
COMPRESSION = (  # recorded with Apptainer 1.4.5
    "FATAL:   container creation failed: image driver mount failure: image driver squashfuse_ll instance exited with "
    "error: squashfuse_ll exited: Squashfs image uses lzma compression, this version supports only lzo, xz, zlib, lz4, "
    "zstd."
)
KERNEL = (  # of a full disk, ganga-devs/ganga
    "FATAL: container creation failed: mount /proc/self/fd/5->/usr/local/var/singularity/mnt/session/rootfs error: "
    "can't mount image /proc/self/fd/5: failed to mount squashfs filesystem: invalid argument"
)
FULL = "OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        (OUT_OF_MEMORY, "the GPU's memory is full: use a smaller batch"),
        (DRIVER, "the nodes' NVIDIA driver is older than the image's CUDA needs"),
        (FORK, "a process that has used a GPU was forked"),
        (BFLOAT16, "these GPUs do not compute with bfloat16"),
        (BF16, "these GPUs do not compute with bfloat16"),
        (VLLM, "these GPUs do not compute with bfloat16"),
        (
            "ModuleNotFoundError: No module named 'einops.layers'",
            "the image has no Python module einops.layers: add its",
        ),
        (
            "[1,0]<stderr>:ModuleNotFoundError: No module named 'einops'",
            "the image has no Python module einops: add its",
        ),
        (NO_MODULE, "the image has no Python module deepspeed.launcher: add"),
        ("OSError: libcuda.so.1: cannot open shared object file: No such file", "the container has no NVIDIA driver"),
        (
            "OSError: libcudart.so.12: cannot open shared object file: No such file",
            "the image has no library libcudart.so.12",
        ),
        *((line, "the engine mounts no user layers and SquashFS") for line in (LOOP, LOOP_OF_ROOT, KERNEL_SQUASHFS)),
        (KERNEL, "the node's kernel does not mount the image: it is incomplete"),
        (COMPRESSION, "the node's engine does not read images that are compressed by lzma"),
        (FULL, "a disk, a quota or shared memory is full"),
        ("OSError: [Errno 122] Disk quota exceeded", "a disk, a quota or shared memory is full"),
        (SHARED_MEMORY, "a disk, a quota or shared memory is full"),
        (MAPPED, "shared memory (/dev/shm) is full"),
        ("bash: line 1: 31260 Bus error               python3 train.py", "shared memory (/dev/shm) is full"),
        (FILES, "the limit of open files is reached"),
        (ANCDATA, "the limit of open files is reached"),
        (BIND, "another process of the node has the port"),
        (DIRECT, "the image's MPI did not reach the scheduler's PMIx"),
        (OPAL, "the image's MPI did not reach the scheduler's PMIx"),
        (WATCHDOG, "a rank did not come to a collective in time"),
        (ABORT, "torch aborts like this when a program ends without torch.distributed.destroy_process_group(), or"),
    ],
)
def test_known_causes(line: str, remedy: str) -> None:
    assert advise(["Traceback (most recent call last):", line, "", "srun: error: n1: task 0: Exited"]).startswith(
        remedy
    )


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["ValueError: wrong shape"],
        ["warning: No module named apex, using torch's own"],
        [OUT_OF_MEMORY, *["step"] * 60, "ValueError: wrong shape"],  # it was overcome
    ],
)
def test_nothing_is_advised_without_a_known_cause(lines: list[str]) -> None:
    assert advise(lines) == ""


def test_the_cause_comes_before_what_follows_from_it() -> None:
    assert advise([ABORT, WATCHDOG, OUT_OF_MEMORY]).startswith("the GPU's memory is full")
