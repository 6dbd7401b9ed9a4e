"""Train torchvision's ResNet-50 on an ImageFolder tree with Horovod.

The five things that Horovod asks of a training program are marked "Horovod 1" to "Horovod 5".
"""

from __future__ import annotations

import math
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional

sys.path.extend([str(Path(__file__).resolve().parents[1] / "common"), "/opt/ctrain/examples/common"])
import data
import horovod.torch as hvd
import torch
from checkpoint import find_checkpoint, save_checkpoint
from example import Metrics, World, begin, finish
from options import parse_options
from progress import Progress, Terminated
from torch.nn import functional
from torchvision.models import resnet50

EXIT_NO_INPUT = 2
EXIT_TERMINATED = 128 + signal.SIGTERM


def input_problem(options: Namespace) -> Optional[str]:
    """Asks every rank: a folder may be missing on one node only."""
    problem = None if options.synthetic else data.find_problem(Path(options.data))
    if not problem and options.resume and not find_checkpoint(Path(options.resume)):
        problem = f"{options.resume} is no checkpoint, nor a run directory with one; --resume wants either"
    problems = [found for found in hvd.allgather_object(problem) if found]
    return f"train.py: {problems[0]} (so on {len(problems)} of {hvd.size()} ranks)" if problems else None


def cpus_per_rank() -> int:
    """ctrain sets OMP_NUM_THREADS to the cores of a rank; without it, the ranks of a node share its cores."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdigit() else max(1, len(os.sched_getaffinity(0)) // hvd.local_size())


class Trainer:
    """The model and its optimizer on one rank, and how far they are."""

    def __init__(self, options: Namespace, images: data.Images, world: World) -> None:
        self.options = options
        self.world = world
        # Horovod 2: each rank of a node takes the GPU of its local rank (in `begin`).
        self.device = world.device
        if self.device.type == "cpu":
            torch.set_num_threads(cpus_per_rank())
        torch.manual_seed(options.seed)
        # Blocks that start as the identity let large batches train stably.
        self.model = resnet50(num_classes=images.classes, zero_init_residual=True).to(self.device)
        self.precision = self._choose_precision()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision is torch.float16)

        workers = options.workers if options.workers is not None else min(8, cpus_per_rank() - 1)
        self.train_loader = data.train_loader(images, options, hvd.rank(), hvd.size(), workers)
        self.val_loader = data.val_loader(images, options, hvd.rank(), hvd.size(), workers)
        self.steps_per_epoch = len(self.train_loader)
        self.total_steps = options.epochs * self.steps_per_epoch
        self.step = 0
        self._fit_batch_norm()

        # Horovod 3: the learning rate grows with the ranks; the optimizer averages their gradients.
        self.peak_lr = options.base_lr * options.batch_size / 32 * hvd.size()
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self._parameter_groups(), lr=self.peak_lr, momentum=options.momentum),
            named_parameters=self.model.named_parameters(),
            compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
        )

    def _choose_precision(self) -> Optional[torch.dtype]:
        if self.options.amp == "off" or self.device.type == "cpu":
            return None
        # GPUs before Ampere only imitate bfloat16.
        return torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16

    def _fit_batch_norm(self) -> None:
        """Lets the running statistics reach back ten steps as usual, but at most a fifth of a short epoch.

        Else they describe, where an epoch has a dozen steps, a network of long ago, and validation suffers.
        """
        momentum = min(0.5, max(0.1, 5 / self.steps_per_epoch))
        for module in self.model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = momentum

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Biases and the scales of batch normalization (one dimension) are not decayed."""
        parameters = list(self.model.parameters())
        return [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": self.options.weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]

    def start(self) -> None:
        """Makes all ranks equal: to the checkpoint to resume from, or to rank 0's random start."""
        if self.options.resume and hvd.rank() == 0:
            self._load(find_checkpoint(Path(self.options.resume)))
        self.step = hvd.broadcast_object(self.step, root_rank=0)
        self.scaler.load_state_dict(hvd.broadcast_object(self.scaler.state_dict(), root_rank=0))
        # Horovod 4: broadcast. A new optimizer takes an empty step to get its state: parameters come second.
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)

    def _load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        # On another number of ranks an epoch has another number of steps.
        self.step = round(state["step"] / state["steps_per_epoch"] * self.steps_per_epoch)
        self.world.say(f"resumed from {path}: {self.step} of {self.total_steps} steps are done")

    def save(self) -> None:
        # Horovod 5: rank 0 alone writes checkpoints; the others hold the same.
        if hvd.rank() == 0:
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "step": self.step,
                "steps_per_epoch": self.steps_per_epoch,
            }
            save_checkpoint(Path(self.options.run_dir), state)

    def _learning_rate(self) -> float:
        """A linear warm-up, then half a cosine down to zero."""
        warmup = round(min(self.options.warmup_epochs, self.options.epochs / 4) * self.steps_per_epoch)
        if self.step < warmup:
            return self.peak_lr * (self.step + 1) / warmup
        return self.peak_lr * (1 + math.cos(math.pi * (self.step - warmup) / (self.total_steps - warmup))) / 2

    def _forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        autocast = torch.autocast(self.device.type, self.precision) if self.precision else nullcontext()
        # Convolutions on tensor cores want the channels last; Horovod wants the weights as they are.
        images = images.to(self.device, non_blocking=True, memory_format=torch.channels_last)
        with autocast:
            outputs = self.model(images)
            return functional.cross_entropy(outputs, labels), outputs

    def train_epoch(self, epoch: int) -> Iterator[torch.Tensor]:
        """Trains what is left of the epoch, and yields this rank's loss after each step."""
        self.model.train()
        sampler = self.train_loader.sampler
        sampler.set_epoch(epoch)
        sampler.seen = self.step % self.steps_per_epoch * self.options.batch_size
        for images, labels in self.train_loader:
            yield self._train_step(images, labels)

    def _train_step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        learning_rate = self._learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad()
        loss, _ = self._forward(images, labels.to(self.device, non_blocking=True))
        self.scaler.scale(loss).backward()
        # Only averaged gradients are the same everywhere, so all ranks skip an overflowed fp16 step together.
        self.optimizer.synchronize()
        with self.optimizer.skip_synchronize():
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step += 1
        return loss.detach()

    def step_facts(self) -> dict[str, float]:
        return {"step": self.step, "steps": self.total_steps, "lr": self.optimizer.param_groups[0]["lr"]}

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Loss and accuracy over all images of all ranks."""
        # Each rank has seen other images; the averaged statistics are those of the model as a whole.
        statistics = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        hvd.grouped_allreduce_(statistics, name="batch-norm", op=hvd.Average)
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for images, labels in self.val_loader:
            labels = labels.to(self.device, non_blocking=True)
            loss, outputs = self._forward(images, labels)
            correct = (outputs.argmax(dim=1) == labels).sum()
            sums += torch.stack([loss * len(labels), correct, torch.tensor(len(labels), device=self.device)])
        loss_sum, correct_sum, count = hvd.allreduce(sums, name="validation", op=hvd.Sum).tolist()
        return loss_sum / count, correct_sum / count


def train(trainer: Trainer, metrics: Metrics) -> None:
    options = trainer.options
    progress = Progress(metrics, options.batch_size * hvd.size())
    for epoch in range(trainer.step // trainer.steps_per_epoch, options.epochs):
        place = {"epoch": epoch + 1, "epochs": options.epochs}
        progress.start_epoch()
        for loss in trainer.train_epoch(epoch):
            progress.step_done(loss, **place, **trainer.step_facts())
            if options.checkpoint_every and trainer.step % options.checkpoint_every == 0:
                trainer.save()
        mean_loss, speed = progress.end_epoch()
        val_loss, val_accuracy = trainer.validate()
        metrics.write(**place, step=trainer.step, val_loss=val_loss, val_accuracy=val_accuracy)
        if not options.checkpoint_every or trainer.step == trainer.total_steps:
            trainer.save()
        trainer.world.say(
            f"epoch {epoch + 1}/{options.epochs}  loss {mean_loss:.2f}  "
            f"val accuracy {val_accuracy:.1%}  {speed:,.0f} images/s".replace("%", " %")
        )


def main() -> int:
    options = parse_options()
    # Horovod 1: start (hvd.init). From here on every process knows its rank and how many there are.
    world = begin("horovod")
    if problem := input_problem(options):
        if world.rank == 0:
            print(problem, file=sys.stderr, flush=True)
        return EXIT_NO_INPUT
    trainer = Trainer(options, data.load(options, hvd.size()), world)
    trainer.start()
    try:
        train(trainer, Metrics(world, Path(options.run_dir)))
    except Terminated:
        trainer.save()
        world.say(f"terminated after step {trainer.step} of {trainer.total_steps}; a checkpoint was saved")
        return EXIT_TERMINATED
    return 0


if __name__ == "__main__":
    finish(main)
