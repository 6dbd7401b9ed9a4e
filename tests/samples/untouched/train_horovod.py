"""A training for Horovod, of which ctrain is unknown: horovodrun ... python train_horovod.py DATA SNAPSHOT"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from shards import FEATURES, epochs

data, snapshot = sys.argv[1], Path(sys.argv[2])
hvd.init()
model, step = torch.nn.Linear(FEATURES, 1), 0
if hvd.rank() == 0 and snapshot.exists():
    state = torch.load(snapshot)
    model.load_state_dict(state["model"])
    step = state["step"]
step = hvd.broadcast_object(step, root_rank=0)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for epoch in epochs(data, hvd.rank()):
    for inputs, targets in epoch:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(0.2)  # as long as a larger model takes
        if hvd.rank() == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        if hvd.rank() == 0 and step % 25 == 0:
            partial = snapshot.with_suffix(".tmp")
            torch.save({"step": step, "model": model.state_dict()}, partial)
            partial.replace(snapshot)
