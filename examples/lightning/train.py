"""Train a ResNet of torchvision under PyTorch Lightning, on an ImageFolder tree.

  ctrain run lightning --nodes 2 --data DIR

Lightning learns ranks and nodes from each scheduler in another way. ctrain's ranks have the same variables everywhere.
This program passes them to the Trainer, and is right under every scheduler and launcher.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from torch.nn.functional import cross_entropy
from torchvision import models

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
import images
from example import EXIT_SAVED, Metrics, World, begin, finish, is_restarted, resume_dir, run_dir, stopping
from late import start_reading
from settings import OptionParser

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


def parse_options() -> argparse.Namespace:
    parser = OptionParser(
        description="Train a ResNet under PyTorch Lightning.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    images.add_options(parser)
    parser.add_argument("--model", choices=RESNETS, default="resnet50")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--lr", type=float, default=0.0125, help="learning rate of one rank")
    return parser.parse_args()


class Classifier(lightning.LightningModule):
    """The network, its loss and its optimizer; Lightning has the loops."""

    def __init__(self, options: argparse.Namespace, classes: int, world: World) -> None:
        super().__init__()
        self.options, self.world = options, world
        self.network = torch.nn.Sequential(images.Normalize(), getattr(models, options.model)(num_classes=classes))
        self.metrics, self.unwritten, self.stopping = Metrics(world), None, False
        self.counts = torch.zeros(2)  # validation images classified correctly, and all

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.SGD(self.parameters(), self.options.lr * self.world.size, momentum=0.9)
        steps = self.trainer.estimated_stepping_batches
        # Up during the first tenth of the run, then down to zero.
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / (0.1 * steps), (1 - step / steps) / 0.9)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        pictures, labels = batch
        loss = cross_entropy(self.network(pictures), labels)
        values = torch.stack([loss.detach(), loss.new_tensor(float(stopping()))])
        means = self.trainer.strategy.reduce(values, reduce_op="mean")
        steps = self.trainer.estimated_stepping_batches
        facts = {"epoch": self.current_epoch + 1, "step": self.global_step + 1, "steps": steps}
        self._write_step((facts, start_reading(means)))
        return loss

    def on_train_batch_end(self, *_: object) -> None:
        if self.stopping:  # all ranks, after the same step
            self._write_step()
            partial = last_checkpoint(run_dir() / "checkpoint").with_name(".last.tmp")
            self.trainer.save_checkpoint(partial)
            if self.world.rank == 0:
                partial.replace(last_checkpoint(partial.parent))
            self.world.say(f"asked to end after step {self.global_step}; a checkpoint was saved")
            raise SystemExit(EXIT_SAVED)

    def _write_step(self, following: tuple[dict[str, int], Callable[[], list[float]]] | None = None) -> None:
        """Writes the step before, which a GPU has done by now: `.item()` of this one would wait for it."""
        if self.unwritten:
            facts, read = self.unwritten
            loss, stops = read()
            self.stopping = stops > 0
            self.metrics.write(**facts, loss=loss)
        self.unwritten = following

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        pictures, labels = batch
        correct = (self.network(pictures).argmax(dim=1) == labels).sum()
        self.counts = self.counts.to(self.device)
        self.counts[0] += correct
        self.counts[1] += len(labels)

    def on_validation_epoch_end(self) -> None:
        self._write_step()
        counts = self.trainer.strategy.reduce(self.counts.to(self.device), reduce_op="sum")
        correct, count = counts.long().tolist()
        self.counts.zero_()
        self.metrics.write(
            epoch=self.current_epoch + 1, step=self.global_step, val_accuracy=correct / count, images=count
        )
        self.world.say(
            f"epoch {self.current_epoch + 1}/{self.options.epochs}  accuracy {correct / count:.1%} of {count}"
        )


def last_checkpoint(directory: Path) -> Path:
    return directory / "last.ckpt"


def choose_precision(device: torch.device) -> str:
    if device.type == "cpu":
        return "32-true"
    # GPUs before Ampere only imitate bfloat16.
    return "bf16-mixed" if torch.cuda.get_device_capability() >= (8, 0) else "16-mixed"


def main() -> int:
    options = parse_options()
    world = begin()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    # Of Lightning 2.6 itself, by torch 2.13; and that a resumed run has a directory of its own.
    warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated|The dirpath has changed")
    torch.manual_seed(options.seed)
    dataset = images.load(options, world.size)
    ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = lightning.Trainer(
        accelerator="gpu" if world.device.type == "cuda" else "cpu",
        devices=ranks_per_node,
        num_nodes=world.size // ranks_per_node,
        strategy="ddp",
        plugins=[TorchElasticEnvironment()],  # RANK, WORLD_SIZE ..., which ctrain sets; not those of one scheduler
        precision=choose_precision(world.device),
        max_epochs=options.epochs,
        callbacks=[
            ModelCheckpoint(run_dir() / "checkpoint", "{epoch}", "epoch", mode="max", save_top_k=2, save_last="link")
        ],
        use_distributed_sampler=False,  # its validation counts some images twice, to give all ranks as many
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    resumed = last_checkpoint(resume_dir()) if resume_dir() else None
    if resumed and not resumed.exists():
        if not is_restarted():
            raise SystemExit(f"{resumed.parent} has no checkpoint to resume from")
        resumed = None
    loaders = images.make_loaders(dataset, options, world)
    stopping()  # from here on a signal only asks for the end; before Lightning sets handlers of its own
    trainer.fit(Classifier(options, dataset.classes, world), *loaders, ckpt_path=resumed)
    return 0


if __name__ == "__main__":
    finish(main)
