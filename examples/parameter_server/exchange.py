"""Three ways to bring the gradients of all ranks together, out of plain messages whose bytes are counted.

Gradients and parameters are flat vectors in main memory; messages go by Gloo, also on nodes with GPUs, because NCCL
cannot receive from whichever rank is first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Callable, NamedTuple, Optional

import torch
import torch.distributed as dist

SERVER = 0


class Wire:
    """Messages of this rank within a group of all ranks, and how many bytes they had."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.sent = self.received = 0

    def send(self, message: torch.Tensor, to: int) -> None:
        dist.send(message, to, self.group)
        self.sent += message.nbytes

    def receive(self, into: torch.Tensor, source: Optional[int] = None) -> int:
        """Wait for a message of `source`, or of whichever rank is first; returns its rank."""
        sender = dist.recv(into, source, self.group)
        self.received += into.nbytes
        return sender

    def exchange(self, message: torch.Tensor, to: int, into: torch.Tensor, source: int) -> None:
        """Send and receive at once: in a ring where all ranks send first, nobody would ever receive."""
        sending = dist.isend(message, to, self.group)
        self.receive(into, source)
        sending.wait()
        self.sent += message.nbytes


class Push(NamedTuple):
    """What a worker sends: a gradient, the loss, and the version of the parameters that both come from."""

    worker: int
    gradient: torch.Tensor
    loss: float
    version: int


def _receive_push(wire: Wire, length: int, source: Optional[int]) -> Push:
    message = torch.empty(length + 2)
    worker = wire.receive(message, source)
    return Push(worker, message[:-2], message[-2].item(), int(message[-1]))


def push_and_pull(wire: Wire, gradient: torch.Tensor, loss: float, version: int) -> tuple[torch.Tensor, int]:
    """A worker's side of both servers: send a gradient, wait for parameters; returns them and their version."""
    wire.send(torch.cat([gradient, torch.tensor([loss, float(version)])]), SERVER)
    reply = torch.empty(len(gradient) + 1)
    wire.receive(reply, SERVER)
    return reply[:-1], int(reply[-1])


def serve(
    wire: Wire, parameters: torch.Tensor, update: Callable[[torch.Tensor], None], steps: int, together: bool, delay: int
) -> Iterator[tuple[float, list[int]]]:
    """Serve all workers for `steps` rounds; after each round yields its mean loss and the staleness of its gradients.

    together: one update per round, of the mean of all gradients (synchronous). Otherwise an update per gradient as it
    comes in, as in Downpour SGD (Dean et al., Large Scale Distributed Deep Networks, 2012, with n_push = n_fetch = 1).
    A gradient's staleness is how many updates were made since its worker got the parameters that it is of. `delay`: the
    worker gets those of so many updates ago, which shows what more workers, or slower ones, would do.
    """
    workers = dist.get_world_size() - 1
    version = 0
    kept = deque([(version, parameters.clone())], delay + 1)  # the oldest one is what workers get
    for _ in range(steps):
        losses, stale = [], []
        mean = torch.zeros_like(parameters)
        for worker in range(1, workers + 1):
            push = _receive_push(wire, len(parameters), worker if together else None)
            losses.append(push.loss)
            stale.append(version - push.version)
            if together:
                mean += push.gradient / workers
            else:
                update(push.gradient)
                version += 1
                kept.append((version, parameters.clone()))
                wire.send(torch.cat([kept[0][1], torch.tensor([float(kept[0][0])])]), push.worker)
        if together:
            update(mean)
            version += 1
            for worker in range(1, workers + 1):
                wire.send(torch.cat([parameters, torch.tensor([float(version)])]), worker)
        yield sum(losses) / workers, stale


def ring_all_reduce(wire: Wire, vector: torch.Tensor) -> None:
    """Sum the vectors of all ranks, in place; each rank sends 2 (n - 1) / n of its length, to its neighbour alone.

    In the first n - 1 steps a sum travels around the ring for each n-th of the vector, and ends complete; in the other
    n - 1 it travels on and replaces what it meets (Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms, 2009).
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = vector.tensor_split(size)  # views
    for step in range(2 * (size - 1)):
        mine, incoming = parts[(rank - step) % size], torch.empty_like(parts[(rank - step - 1) % size])
        wire.exchange(mine, (rank + 1) % size, incoming, (rank - 1) % size)
        target = parts[(rank - step - 1) % size]
        target.copy_(incoming if step >= size - 1 else target + incoming)
