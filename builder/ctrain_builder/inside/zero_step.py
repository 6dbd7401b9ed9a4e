"""Two processes make one step of DeepSpeed's ZeRO 2 on CPUs: their parameters change, and stay equal."""

from __future__ import annotations

import deepspeed
import torch
import torch.distributed as dist
import workers

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "torch_adam": True}},
}


def step(rank: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    before = model.weight.detach().clone()
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)[0]
    engine.backward(engine(torch.full((1, 4), rank + 1.0)).sum())
    engine.step()
    weights = [torch.empty_like(before) for _ in range(2)]
    dist.all_gather(weights, model.weight.detach())
    if torch.equal(before, weights[0]) or not torch.equal(*weights):
        raise SystemExit("the step did not change the parameters, or not equally in both processes")


if __name__ == "__main__":
    workers.run(step, 2, "gloo")
