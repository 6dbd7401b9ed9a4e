"""Runs a program that knows only GPUs on a CPU: what it allocates on CUDA lies in memory, NCCL is Gloo.

    python gpu_on_cpu.py PROGRAM...

A stand-in: there is no GPU where the tests run. What a GPU computes otherwise, and streams, are not tested by it.
"""

import os
import runpy
import sys

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # which does not see through the mode below

import torch
import torch._dynamo
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def to_cpu(value):
    return CPU if isinstance(value, (str, torch.device)) and str(value).startswith("cuda") else value


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.device:
            return function(*args, **(kwargs or {}))
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1:
            return function(args[0]).replace("torch.", "torch.cuda.")
        return function(*map(to_cpu, args), **{key: to_cpu(value) for key, value in (kwargs or {}).items()})


def main():
    join = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda _: join("gloo")
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: CPU
    torch.cuda.set_device = torch.cuda.synchronize = lambda *_: None
    torch.cuda.max_memory_allocated = lambda *_: 0
    torch.Tensor.pin_memory = lambda tensor: tensor
    sys.argv[:] = sys.argv[1:]
    sys.path.insert(0, sys.argv[0].rpartition("/")[0])
    with OnCpu():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
