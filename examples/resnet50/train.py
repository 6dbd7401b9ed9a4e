"""Train torchvision's ResNet-50 on an ImageFolder tree, with Horovod or PyTorch's DistributedDataParallel. What Horovod
asks of a training program is marked, "Horovod 1" to "Horovod 5", here and in strategies.py."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torchvision.models import resnet50

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
import images
from checkpoint import load_checkpoint, save_checkpoint
from example import EXIT_SAVED, InputError, Metrics, World, begin, finish, stopping
from late import one_late
from settings import OptionParser
from step_clock import StepClock
from strategies import Ddp, Horovod

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parse_options(words: list[str]) -> argparse.Namespace:
    parser = OptionParser(
        description="Train ResNet-50 on an ImageFolder tree.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    images.add_options(parser)
    add = parser.add_argument_group("training").add_argument
    add("--strategy", choices=("horovod", "ddp"), default="horovod", help="how ranks average gradients")
    add("--epochs", type=int, default=90)
    add("--base-lr", type=float, default=0.0125, help="learning rate for 32 images per step; scaled")
    add("--warmup-epochs", type=float, default=5, help="at most a quarter of the run")
    add("--weight-decay", type=float, default=5e-5)
    add("--label-smoothing", type=float, default=0.0, metavar="SHARE", help="0.1 is usual for ImageNet")
    add("--precision", choices=("auto", *PRECISIONS), default="auto", help="auto: fp32 on CPUs, bf16 or fp16 on GPUs")
    add("--fp16-allreduce", action="store_true", help="send gradients as 16-bit numbers")
    add("--compile", action="store_true", help="torch.compile: minutes at the start, then faster steps")
    add("--checkpoint-every", type=int, default=0, metavar="STEPS", help="0: every epoch")
    options = parser.parse_args(words)
    for name, value in vars(options).items():
        if isinstance(value, (int, float)) and value < (least := int(name in ("epochs", "batch_size"))):
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, not {value}")
    return options


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """A GPU trains in 16 bits where nothing else is asked for; those before Ampere only imitate bfloat16."""
    if name == "auto" and device.type == "cuda":
        name = "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "fp16"
    return PRECISIONS.get(name, torch.float32)


class Trainer:
    """The network on one rank, and how far it is trained."""

    def __init__(self, options: argparse.Namespace, world: World) -> None:
        self.options, self.world, self.device, self.stopping = options, world, world.device, False
        self.strategy = Horovod() if options.strategy == "horovod" else Ddp()
        # Rank 0 lists the images for all: thousands of ranks would overload the file system.
        dataset = self.strategy.broadcast(images.load(options, world.size) if world.rank == 0 else None)
        self.train_loader, self.val_loader = images.make_loaders(dataset, options, world)
        self.steps_per_epoch = len(self.train_loader)
        self.step, self.steps, self.metrics = 0, options.epochs * self.steps_per_epoch, Metrics(world)
        self.dtype = choose_precision(options.precision, self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype is torch.float16)
        self.normalize = images.Normalize().to(self.device)
        # The sums of a step are read on a CUDA stream of their own: the other one is busy with the next step.
        self.reading = torch.cuda.Stream() if self.device.type == "cuda" else None
        torch.backends.cudnn.benchmark = True  # the batches are alike
        torch.manual_seed(options.seed)
        # Blocks that start as the identity let large batches train stably.
        self.model = resnet50(num_classes=dataset.classes, zero_init_residual=True)
        start = load_checkpoint(torch.device("cpu")) if world.rank == 0 else None
        self._start(self.strategy.broadcast(start or {"model": self.model.state_dict()}))

    def _start(self, start: dict[str, Any]) -> None:
        """Completes the network and the optimizer, in the state of a checkpoint or of a new model."""
        options, classes = self.options, len(start["model"]["fc.bias"])
        if classes != self.model.fc.out_features:
            raise InputError(f"{options.data} has {self.model.fc.out_features} classes, the checkpoint {classes}")
        self.model.load_state_dict(start["model"])
        self.model.to(self.device, memory_format=torch.channels_last)  # of images, too: convolutions are faster
        for module in self.model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                # The running statistics reach back ten steps as usual, but at most a fifth of a short epoch: else they
                # describe, where an epoch has a dozen steps, a network of long ago.
                module.momentum = min(0.5, max(0.1, 5 / self.steps_per_epoch))
        self.peak_lr = options.base_lr * options.batch_size / 32 * self.world.size
        decayed, others = [], []  # biases and scales of batch normalization, which have one dimension, are not decayed
        for parameter in self.model.parameters():
            (decayed if parameter.ndim > 1 else others).append(parameter)
        groups = [{"params": decayed, "weight_decay": options.weight_decay}, {"params": others}]
        optimizer = torch.optim.SGD(groups, lr=self.peak_lr, momentum=0.9)
        self.network, self.optimizer = self.strategy.wrap(self.model, optimizer, options.fp16_allreduce)
        if options.compile:
            self.network = torch.compile(self.network)
        if "optimizer" in start:
            self.optimizer.load_state_dict(start["optimizer"])
            if start["scaler"]:
                self.scaler.load_state_dict(start["scaler"])
            # On another number of ranks an epoch has another number of steps.
            self.step = round(start["step"] / start["steps_per_epoch"] * self.steps_per_epoch)
            self.world.say(f"resumed: {self.step} of {self.steps} steps are done")

    def train(self) -> int:
        """Trains to the last epoch, or until a signal reaches a rank; the exit code."""
        stopping()  # from here on a signal only asks for the end; earlier, there is nothing to save
        for epoch in range(self.step // self.steps_per_epoch, self.options.epochs):
            place, losses, began = {"epoch": epoch + 1, "epochs": self.options.epochs}, [], time.monotonic()
            for facts, sums in one_late(self._train_epoch(epoch)):
                with torch.cuda.stream(self.reading):
                    loss, stops = sums().tolist()
                    if "seconds_by_rank" in facts:
                        facts["seconds_by_rank"] = facts["seconds_by_rank"]().tolist()
                self.stopping = self.stopping or stops > 0
                losses.append(loss / self.world.size)
                self.metrics.write(**place, **facts, loss=losses[-1])
            speed = len(losses) * self.options.batch_size * self.world.size / (time.monotonic() - began)
            if self.stopping:
                self.save()
                self.world.say(f"asked to end after step {self.step} of {self.steps}; a checkpoint was saved")
                return EXIT_SAVED
            val_loss, accuracy, count = self.validate()
            self.metrics.write(**place, step=self.step, val_loss=val_loss, val_accuracy=accuracy, val_images=count)
            if not self.options.checkpoint_every or self.step == self.steps:
                self.save()
            self.world.say(
                f"epoch {epoch + 1}/{self.options.epochs}  loss {sum(losses) / len(losses):.2f}  "
                f"val accuracy {100 * accuracy:.1f} %  {speed:,.0f} images/s"
            )
        return 0

    def _train_epoch(self, epoch: int) -> Iterator[tuple[dict[str, Any], Callable[[], torch.Tensor]]]:
        """Trains what is left of an epoch; for each step its facts, and the sums of losses and of requests to stop."""
        self.model.train()
        share, clock = self.train_loader.sampler, StepClock()
        share.set_epoch(epoch)
        share.seen = self.step % self.steps_per_epoch * self.options.batch_size
        for batch, labels in self.train_loader:
            clock.start_computing()
            lr = self._learning_rate()
            loss, self.step = self._train_step(batch, labels, lr), self.step + 1
            speed, times = clock.end_step(self.options.batch_size * self.world.size)
            facts = {"step": self.step, "steps": self.steps, "lr": lr, "images_per_second": speed, **times}
            if own := clock.shares(self.step, self.steps, self.world.rank, self.world.size):
                values = torch.tensor(own, dtype=torch.float64, device=self.device)
                facts["seconds_by_rank"] = self.strategy.add(values)  # read later, as the sums
            yield facts, self.strategy.add(torch.stack([loss, torch.full_like(loss, stopping())]))
            if self.stopping:
                return
            if self.options.checkpoint_every and self.step % self.options.checkpoint_every == 0:
                self.save()

    def _train_step(self, batch: torch.Tensor, labels: torch.Tensor, lr: float) -> torch.Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        loss = cross_entropy(*self._forward(batch, labels), label_smoothing=self.options.label_smoothing)
        self.scaler.scale(loss).backward()
        self.strategy.step(self.optimizer, self.scaler)
        self.scaler.update()
        return loss.detach()

    def _learning_rate(self) -> float:
        """A linear warm-up, then half a cosine down to zero."""
        warmup = round(min(self.options.warmup_epochs, self.options.epochs / 4) * self.steps_per_epoch)
        if self.step < warmup:
            return self.peak_lr * (self.step + 1) / warmup
        return self.peak_lr * (1 + math.cos(math.pi * (self.step - warmup) / (self.steps - warmup))) / 2

    def _forward(self, batch: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs, and the labels on the same device."""
        batch = batch.to(self.device, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not torch.float32):
            return self.network(self.normalize(batch)).float(), labels.to(self.device, non_blocking=True)

    def _average_statistics(self) -> None:
        """Each rank has seen other images; the mean of their batch statistics is that of the model as a whole."""
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        means = self.strategy.add(torch.cat(buffers))() / self.world.size
        for buffer, mean in zip(buffers, means.split([len(buffer) for buffer in buffers])):
            buffer.copy_(mean)

    @torch.no_grad()
    def validate(self) -> tuple[float, float, int]:
        """Loss, accuracy and number of all images of all ranks."""
        self._average_statistics()
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for batch, labels in self.val_loader:
            outputs, labels = self._forward(batch, labels)
            correct = (outputs.argmax(dim=1) == labels).sum()
            sums[:2] += torch.stack([cross_entropy(outputs, labels, reduction="sum"), correct])
            sums[2] += len(labels)
        loss, correct, count = self.strategy.add(sums)().tolist()
        return loss / count, correct / count, int(count)

    def save(self) -> None:
        """All ranks call it. Horovod 5: rank 0 alone writes; the others hold the same."""
        self._average_statistics()
        if self.world.rank == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            place = {"step": self.step, "steps_per_epoch": self.steps_per_epoch}
            save_checkpoint({**state, **place, "scaler": self.scaler.state_dict()})


def main() -> int:
    options = parse_options(sys.argv[1:])
    # Horovod 1 and 2: start (hvd.init), and pin each rank of a node to the GPU of its local rank.
    return Trainer(options, begin("horovod" if options.strategy == "horovod" else "torch")).train()


if __name__ == "__main__":
    finish(main)
