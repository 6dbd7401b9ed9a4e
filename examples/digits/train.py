"""Classify handwritten digits with Horovod: the smallest whole program. What Horovod asks for is marked, step 1 to 5.

  ctrain run digits --nodes 2 --data DIR

ddp.py beside it is the same program with PyTorch's DistributedDataParallel: `diff train.py ddp.py` shows what differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
import digits
from checkpoint import load_checkpoint, save_checkpoint
from example import EXIT_SAVED, Metrics, World, finish, stopping
from pictures import make_parser


def main() -> int:
    parser = make_parser("Classify handwritten digits with Horovod.")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank")
    options = parser.parse_args()

    # Step 1: start. From here on each process knows its rank, and how many ranks there are.
    hvd.init()
    # Step 2: pin. Each rank of a node takes the GPU of its local rank.
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)
    world = World(hvd.rank(), hvd.size(), hvd.local_rank(), device)

    train, val = digits.load(options.data)
    share = DistributedSampler(train, world.size, world.rank)
    loader = DataLoader(train, options.batch_size, sampler=share)
    torch.manual_seed(0)
    model = digits.make_model().to(device)

    # Step 3: scale and wrap. A step sees `size` times as many pictures; the optimizer averages the ranks' gradients.
    optimizer = torch.optim.SGD(model.parameters(), options.lr * world.size, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    # Step 4: broadcast. All ranks start as rank 0 does: anew, or where the run to resume was.
    first_epoch = 0
    if world.rank == 0 and (state := load_checkpoint(device)):
        first_epoch = state["epoch"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    metrics = Metrics(world)
    stopping()  # from here on a signal only asks for the end, after an epoch
    for epoch in range(first_epoch, options.epochs):
        share.set_epoch(epoch)  # each epoch deals the pictures anew
        optimizer.param_groups[0]["lr"] = options.lr * world.size * (1 - epoch / options.epochs)
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        loss = hvd.allreduce(torch.stack(losses).mean(), op=hvd.Average).item()
        correct = hvd.allreduce(digits.count_correct(model, val, world.rank, world.size, device), op=hvd.Sum).item()
        stops = hvd.allreduce(torch.tensor(float(stopping())), op=hvd.Sum).item()

        # Step 5: rank 0 alone reports and writes checkpoints; the others hold the same weights.
        if world.rank == 0:
            done = {"epoch": epoch + 1, "step": (epoch + 1) * len(loader)}
            metrics.write(**done, steps=options.epochs * len(loader), loss=loss, accuracy=correct / len(val))
            world.say(f"epoch {epoch + 1}/{options.epochs}  loss {loss:.3f}  accuracy {correct / len(val):.1%}")
            state = {**done, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint(state)
        if stops and epoch + 1 < options.epochs:
            return EXIT_SAVED
    return 0


if __name__ == "__main__":
    finish(main)
