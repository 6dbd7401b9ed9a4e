"""Test what distributed training needs: ranks, devices, every collective operation, a small model, a profiler.

  ctrain run selftest --nodes 2                       with torch.distributed, MPI and Horovod
  ctrain run selftest --nodes 2 --launcher env        without MPI: says what it leaves out, and why

Ends with code 1 if a library returns a wrong value on any rank, or if the model does not learn.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist
from collectives import LIBRARIES, check, expected_results, skip_reason
from pyinstrument import Profiler
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
from example import Metrics, World, begin, finish, run_dir

STEPS = 200


def gather(value: object, world: World) -> list:
    """The values of all ranks."""
    values = [None] * world.size
    dist.all_gather_object(values, value)
    return values


def describe(world: World) -> str:
    """A line per host: its ranks and their devices."""
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.machine()
    cores = len(os.sched_getaffinity(0))
    hosts = defaultdict(list)
    for rank, (host, *what) in enumerate(gather((socket.gethostname(), str(world.device), device, cores), world)):
        hosts[host].append((rank, *what))
    lines = [f"{world.size} ranks on {len(hosts)} hosts; torch {torch.__version__}, Python {platform.python_version()}"]
    for host, ranks in hosts.items():
        what = sorted({f"{device}, {cores} cores" for _, _, device, cores in ranks})
        lines.append(f"  {host}: " + ", ".join(f"rank {rank} {place}" for rank, place, _, _ in ranks))
        lines.append(f"  {'':{len(host)}}  {'; '.join(what)}")
    return "\n".join(lines)


def check_libraries(world: World) -> bool:
    """Print a table of collectives and libraries, and what went wrong where; True if nothing did."""
    columns, problems = {}, []
    for module, make in LIBRARIES.items():
        if reason := skip_reason(module):
            world.say(f"skipped   {module}: {reason}")
            continue
        library = make()
        by_rank = gather(check(library, world.device), world)
        columns[library.name] = cells = {}
        for name in ("world", *expected_results(0, 1)):
            outcomes = [outcomes.get(name, "") for outcomes in by_rank]
            wrong = [rank for rank, outcome in enumerate(outcomes) if outcome not in ("ok", "-", "")]
            cells[name] = f"wrong on {len(wrong)}" if wrong else outcomes[0]
            if wrong:
                problems.append(f"{library.name}: {name}: rank {wrong[0]}: {outcomes[wrong[0]]}")
    world.say("".join([" " * 16, *(f"{name:28}" for name in columns)]).rstrip())
    for name in expected_results(0, 1):
        world.say("".join([f"{name:16}", *(f"{cells[name]:28}" for cells in columns.values())]).rstrip())
    for problem in problems:
        world.say(f"FAILED    {problem}")
    return not problems


def train(world: World, metrics: Metrics) -> bool:
    """Fit the sum of squares of four numbers; each rank draws its own. True if the ranks learn it, and in step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(world.device)
    wrapped = DistributedDataParallel(model, device_ids=[world.device] if world.device.type == "cuda" else None)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.03)
    generator = torch.Generator().manual_seed(world.rank)
    losses = []
    for step in range(1, STEPS + 1):
        inputs = torch.randn(64, 4, generator=generator).to(world.device)
        loss = torch.nn.functional.mse_loss(wrapped(inputs), inputs.square().sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / world.size
        dist.all_reduce(mean)
        losses.append(mean.item())
        metrics.write(step=step, steps=STEPS, loss=losses[-1])
    weights = gather([parameter.detach().cpu() for parameter in model.parameters()], world)
    equal = all(all(map(torch.equal, weights[0], other)) for other in weights)
    learnt = losses[-1] < losses[0] / 4
    world.say(
        f"training  loss {losses[0]:.2f} -> {losses[-1]:.2f} in {STEPS} steps; weights are equal on all ranks: {equal}"
    )
    return equal and learnt


def main() -> int:
    world = begin()
    world.say(describe(world))
    well = check_libraries(world)
    with Profiler() as profiler:
        well = train(world, Metrics(world)) and well
    if world.rank == 0:
        path = run_dir() / "profile.html"
        path.write_text(profiler.output_html())
        world.say(profiler.output_text(show_all=False, timeline=False))
        world.say(f"profile   {path}")
    world.say("passed" if well else "FAILED")
    return 0 if well else 1


if __name__ == "__main__":
    finish(main)
