"""What differs between Horovod and PyTorch's DistributedDataParallel (DDP). Both average the gradients of all ranks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


class InOrderOfMemory(NamedTuple):
    """Compression of gradients with the channels last: Horovod takes tensors only with dimensions in memory's order."""

    compression: Any

    def compress(self, gradient: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return self.compression.compress(gradient.permute(0, 2, 3, 1) if gradient.ndim == 4 else gradient)

    def decompress(self, mean: torch.Tensor, context: Any) -> torch.Tensor:
        gradient = self.compression.decompress(mean, context)
        return gradient.permute(0, 3, 1, 2) if gradient.ndim == 4 else gradient


class Horovod:
    def __init__(self) -> None:
        import horovod.torch as hvd

        self.hvd = hvd

    def broadcast(self, value: Any) -> Any:
        """What rank 0 passes. Horovod 4: broadcast, so that all ranks start alike: anew, or from a checkpoint."""
        # Horovod's broadcast_object makes a tensor of a value byte by byte: three seconds for this network.
        sent = pickle.dumps(value) if self.hvd.rank() == 0 else b""
        size = self.hvd.broadcast(torch.tensor(len(sent)), root_rank=0, name="size").item()
        data = torch.frombuffer(bytearray(sent or size), dtype=torch.uint8)
        return pickle.loads(self.hvd.broadcast(data, root_rank=0, name="start").numpy().data)  # noqa: S301  # rank 0 made it

    def wrap(self, model: Module, optimizer: Optimizer, fp16: bool) -> tuple[Module, Optimizer]:
        """The network to call, and the optimizer to step. `fp16`: gradients are sent as 16-bit numbers."""
        # Horovod 3: the optimizer averages the gradients (and the learning rate grows with the ranks: Trainer).
        compression = InOrderOfMemory(self.hvd.Compression.fp16 if fp16 else self.hvd.Compression.none)
        return model, self.hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)

    def step(self, optimizer: Optimizer, scaler: torch.amp.GradScaler) -> None:
        # Only averaged gradients are the same everywhere, so all ranks skip an overflowed fp16 step together.
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            scaler.step(optimizer)

    def add(self, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Starts to add the values of all ranks; the function that it returns waits for the sums."""
        handle = self.hvd.allreduce_async(values, op=self.hvd.Sum)
        return lambda: self.hvd.synchronize(handle)


class Ddp:
    def broadcast(self, value: Any) -> Any:
        dist.broadcast_object_list(values := [value])
        return values[0]

    def wrap(self, model: Module, optimizer: Optimizer, fp16: bool) -> tuple[Module, Optimizer]:
        if dist.get_world_size() == 1:  # with nobody to average with, DDP would copy all gradients for nothing
            return model, optimizer
        # The statistics of batch normalization stay with their rank, as under Horovod; Trainer averages them.
        network = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
        if fp16:
            network.register_comm_hook(None, fp16_compress_hook)
        return network, optimizer

    def step(self, optimizer: Optimizer, scaler: torch.amp.GradScaler) -> None:
        scaler.step(optimizer)

    def add(self, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        work = dist.all_reduce(values, async_op=True)
        return lambda: (work.wait(), values)[1]
