"""Each of N processes multiplies matrices on a GPU of its own; then they sum by NCCL: gpu.py N."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import workers


def step(rank: int) -> None:
    torch.cuda.set_device(rank)
    ones = torch.ones(512, 512, device="cuda")
    product = ones @ ones
    if product.sum().item() != 512.0**3:
        raise SystemExit(f"the product on GPU {rank} is wrong")
    total = torch.full((1000,), rank + 1.0, device="cuda")
    dist.all_reduce(total)
    size = dist.get_world_size()
    if total[0].item() != size * (size + 1) / 2:
        raise SystemExit(f"the sum over {size} GPUs is {total[0].item()}")


if __name__ == "__main__":
    workers.run(step, int(sys.argv[1]), "nccl")
