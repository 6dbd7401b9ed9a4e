"""Processes sum a number each with Horovod and check the result: all_reduce.py FRAMEWORK PROCESSES [gpu].

Started by mpirun or horovodrun.
"""

from __future__ import annotations

import sys
from importlib import import_module

framework, size, on_gpu = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["gpu"]
hvd = import_module(f"horovod.{framework}")
hvd.init()
if hvd.size() != size:
    raise SystemExit(f"each process sees a world of {hvd.size()}, not of {size}")
mine = [float(hvd.rank() + 1)] * 1000
if framework == "torch":
    import torch

    tensor = torch.tensor(mine, device=f"cuda:{hvd.local_rank()}" if on_gpu else "cpu")
else:
    import tensorflow

    with tensorflow.device(f"/GPU:{hvd.local_rank()}" if on_gpu else "/CPU:0"):
        tensor = tensorflow.constant(mine)
total = hvd.allreduce(tensor, op=hvd.Sum)
wanted = size * (size + 1) / 2
if any(float(number) != wanted for number in total):
    raise SystemExit(f"the sum is {float(total[0])}, not {wanted}")
hvd.shutdown()
