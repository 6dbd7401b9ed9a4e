"""A parameter server, synchronous and asynchronous, against ring all-reduce: the same task in three ways.

  ctrain run parameter_server --nodes 2 --data DIR

Rank 0 is the server, and the other ranks compute gradients. The ring has no server: all ranks compute.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exchange import SERVER, Wire, push_and_pull, ring_all_reduce, serve
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
import digits
from checkpoint import load_checkpoint, save_checkpoint
from example import EXIT_SAVED, Metrics, World, begin, finish, stopping
from pictures import make_parser

METHODS = {"sync": "server, synchronous", "async": "server, asynchronous", "ring": "ring all-reduce"}


class Replica:
    """The model on one rank; its parameters are a flat vector in main memory, as messages are."""

    def __init__(self, options: Namespace, world: World) -> None:
        torch.manual_seed(0)
        self.device = world.device
        self.model = digits.make_model().to(world.device)
        self.vector = parameters_to_vector(self.model.parameters()).detach().cpu()
        # As in Downpour SGD: the steps shrink as gradients add up, which forgives stale ones.
        self.optimizer = torch.optim.Adagrad([self.vector], options.lr)

    def gradient(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, float]:
        """The gradient at the present parameters, and the loss."""
        vector_to_parameters(self.vector.to(self.device), self.model.parameters())
        loss = cross_entropy(self.model(images.to(self.device)), labels.to(self.device))
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        return parameters_to_vector(gradients).cpu(), loss.item()

    def update(self, gradient: torch.Tensor) -> None:
        self.vector.grad = gradient
        self.optimizer.step()

    def accuracy(self, val: TensorDataset) -> float:
        vector_to_parameters(self.vector.to(self.device), self.model.parameters())
        return digits.count_correct(self.model, val, 0, 1, self.device).item() / len(val)


def train(
    method: str, wire: Wire, replica: Replica, data: TensorDataset, options: Namespace
) -> Iterator[tuple[float, list[int]]]:
    """Train for options.epochs. After each round, in which every worker computed a gradient, yields their mean loss and
    how stale each of them was. Rank 0 knows that of all workers."""
    rank, servers = dist.get_rank(), 0 if method == "ring" else 1
    workers = dist.get_world_size() - servers
    share = DistributedSampler(data, workers, max(0, rank - servers))
    batches = DataLoader(data, options.batch_size, sampler=share)
    if servers and rank == SERVER:
        rounds = options.epochs * len(batches)
        yield from serve(wire, replica.vector, replica.update, rounds, method == "sync", options.delay)
        return
    version = 0
    for epoch in range(options.epochs):
        share.set_epoch(epoch)
        for images, labels in batches:
            gradient, loss = replica.gradient(images, labels)
            if servers:
                replica.vector, version = push_and_pull(wire, gradient, loss, version)
                yield loss, []
            else:
                sums = torch.cat([gradient, torch.tensor([loss])])
                ring_all_reduce(wire, sums)
                replica.update(sums[:-1] / workers)
                yield sums[-1].item() / workers, [0]


def measure(
    method: str, data: TensorDataset, val: TensorDataset, options: Namespace, world: World, metrics: Metrics
) -> dict[str, Any]:
    """Train by one method; returns what rank 0 knows of the result, and of the traffic of all ranks."""
    wire = Wire(dist.new_group(backend="gloo"))
    replica = Replica(options, world)
    stale: list[int] = []
    step = 0
    started = time.monotonic()
    for step, (loss, round_stale) in enumerate(train(method, wire, replica, data, options), start=1):
        stale += round_stale
        metrics.write(method=method, step=step, loss=loss, staleness=sum(round_stale) / max(1, len(round_stale)))
    seconds = time.monotonic() - started
    traffic = [0] * world.size
    dist.all_gather_object(traffic, wire.sent + wire.received, wire.group)
    mean_stale, max_stale = sum(stale) / max(1, len(stale)), max(stale, default=0)
    result = {"method": method, "updates": step if method != "async" else len(stale), "seconds": seconds}
    result.update(accuracy=replica.accuracy(val), mean_staleness=mean_stale, max_staleness=max_stale)
    return {**result, "rank_0_bytes": traffic[0], "other_rank_bytes": max(traffic[1:])}


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        f"{'':24}{'updates':>8}{'accuracy':>10}{'staleness':>16}{'MB, rank 0':>12}{'MB, others':>12}{'seconds':>9}"
    ]
    for result in results:
        staleness = f"{result['mean_staleness']:.2f}, max {result['max_staleness']}"
        lines.append(
            f"{METHODS[result['method']]:24}{result['updates']:8}{result['accuracy']:10.1%}{staleness:>16}"
            f"{result['rank_0_bytes'] / 1e6:12.1f}{result['other_rank_bytes'] / 1e6:12.1f}{result['seconds']:9.1f}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = make_parser("Compare a parameter server, synchronous and asynchronous, with ring all-reduce.")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of Adagrad")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument(
        "--delay", type=int, default=0, metavar="N", help="async: workers get parameters of N updates ago"
    )
    options = parser.parse_args()
    if options.delay < 0:
        parser.error(f"--delay must not be negative: {options.delay}")
    world = begin()
    if world.size < 2:
        raise SystemExit("parameter_server needs at least 2 ranks; pass --nodes 2 or --ranks-per-node 2")
    data, val = digits.load(options.data)
    metrics = Metrics(world)
    # To resume skips the methods that are done: each takes seconds.
    results = (load_checkpoint(world.device) or {"results": []})["results"]
    stopping()  # from here on a signal only asks for the end, after a method
    for method in options.methods:
        if method not in [result["method"] for result in results]:
            stops = torch.tensor(float(stopping()), device=world.device)
            dist.all_reduce(stops)
            if stops:
                return EXIT_SAVED
            results.append(measure(method, data, val, options, world, metrics))
            metrics.write(**results[-1])
            if world.rank == 0:
                save_checkpoint({"step": len(results), "results": results})
    world.say(table(results))
    return 0


if __name__ == "__main__":
    finish(main)
