"""A training for torchrun, of which ctrain is unknown: torchrun ... train_torchrun.py DATA SNAPSHOT"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from shards import FEATURES, epochs

data, snapshot = sys.argv[1], Path(sys.argv[2])
dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(FEATURES, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if snapshot.exists():
    state = torch.load(snapshot)
    model.module.load_state_dict(state["model"])
    step = state["step"]
for epoch in epochs(data, rank):
    for inputs, targets in epoch:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(0.2)  # as long as a larger model takes
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        if rank == 0 and step % 25 == 0:
            partial = snapshot.with_suffix(".tmp")
            torch.save({"step": step, "model": model.module.state_dict()}, partial)
            partial.replace(snapshot)
dist.destroy_process_group()
