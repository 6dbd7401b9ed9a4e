"""Classify handwritten digits with PyTorch's DistributedDataParallel: train.py without Horovod, step by step.

ctrain run --nodes 2 --image pytorch-cpu --launcher env --data DIR -- python /opt/ctrain/examples/digits/ddp.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
import digits
from checkpoint import load_checkpoint, save_checkpoint
from example import EXIT_SAVED, Metrics, World, finish, stopping
from pictures import make_parser


def main() -> int:
    parser = make_parser("Classify handwritten digits with DistributedDataParallel.")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank")
    options = parser.parse_args()

    # Steps 1 and 2: pin and start. NCCL would take GPU 0 for all ranks of a node, were none chosen before.
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    world = World(dist.get_rank(), dist.get_world_size(), local_rank, device)

    train, val = digits.load(options.data)
    share = DistributedSampler(train, world.size, world.rank)
    loader = DataLoader(train, options.batch_size, sampler=share)
    torch.manual_seed(0)
    model = digits.make_model().to(device)

    # Step 4: every rank loads the checkpoint to resume from; the wrapper broadcasts the weights of rank 0.
    optimizer = torch.optim.SGD(model.parameters(), options.lr * world.size, momentum=0.9)
    first_epoch = 0
    if state := load_checkpoint(device):
        first_epoch = state["epoch"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    # Step 3: scale (above) and wrap. The model averages the ranks' gradients, while backward still computes others.
    wrapped = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)

    metrics = Metrics(world)
    stopping()  # from here on a signal only asks for the end, after an epoch
    for epoch in range(first_epoch, options.epochs):
        share.set_epoch(epoch)  # each epoch deals the pictures anew
        optimizer.param_groups[0]["lr"] = options.lr * world.size * (1 - epoch / options.epochs)
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(wrapped(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        counted = digits.count_correct(model, val, world.rank, world.size, device)
        sums = torch.stack([torch.stack(losses).mean(), counted, counted.new_tensor(float(stopping()))])
        dist.all_reduce(sums)
        loss, correct = sums[0].item() / world.size, int(sums[1])

        # Step 5: rank 0 alone reports and writes checkpoints; the others hold the same weights.
        if world.rank == 0:
            done = {"epoch": epoch + 1, "step": (epoch + 1) * len(loader)}
            metrics.write(**done, steps=options.epochs * len(loader), loss=loss, accuracy=correct / len(val))
            world.say(f"epoch {epoch + 1}/{options.epochs}  loss {loss:.3f}  accuracy {correct / len(val):.1%}")
            state = {**done, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint(state)
        if sums[2] and epoch + 1 < options.epochs:
            return EXIT_SAVED
    return 0


if __name__ == "__main__":
    finish(main)
