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
from pathlib import Path

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

sys.path.extend([str(Path(__file__).resolve().parents[1] / "common"), "/opt/ctrain/examples/common"])
from example import Metrics, World, begin, finish, resume_dir, run_dir

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a ResNet under PyTorch Lightning.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", type=Path, default="/data", metavar="DIR", help="directory with train/ and val/")
    parser.add_argument("--model", choices=RESNETS, default="resnet50")
    parser.add_argument("--image-size", type=int, default=224, metavar="PIXELS")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.0125, help="learning rate of one rank")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="loader processes per rank")
    return parser.parse_args()


class Images(lightning.LightningDataModule):
    """Each rank's share: of the training images a new one in each epoch; validation images are in one share each."""

    def __init__(self, options: argparse.Namespace, world: World) -> None:
        super().__init__()
        self.options, self.world = options, world
        size = (options.image_size, options.image_size)
        transform = transforms.Compose(
            [transforms.Resize(size), transforms.ToTensor(), transforms.Normalize(0.45, 0.22)]
        )
        try:
            self.train, self.val = (ImageFolder(options.data / part, transform) for part in ("train", "val"))
        except FileNotFoundError as error:
            raise SystemExit(
                f"{error}. Pass --data DIR, with train/ and val/, and a directory per class in each"
            ) from error

    def train_dataloader(self) -> DataLoader:
        return self._loader(self.train, sampler=DistributedSampler(self.train, self.world.size, self.world.rank))

    def val_dataloader(self) -> DataLoader:
        return self._loader(Subset(self.val, range(self.world.rank, len(self.val), self.world.size)))

    def _loader(self, images: torch.utils.data.Dataset, **more: object) -> DataLoader:
        if self.options.workers:
            more.update(num_workers=self.options.workers, persistent_workers=True, multiprocessing_context="forkserver")
        return DataLoader(images, self.options.batch_size, pin_memory=self.world.device.type == "cuda", **more)


class Classifier(lightning.LightningModule):
    """The network, its loss and its optimizer; Lightning has the loops."""

    def __init__(self, options: argparse.Namespace, classes: int, world: World) -> None:
        super().__init__()
        self.options, self.world = options, world
        self.network = getattr(models, options.model)(num_classes=classes)
        self.metrics = Metrics(world)
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
        images, labels = batch
        loss = cross_entropy(self.network(images), labels)
        mean = self.trainer.strategy.reduce(loss.detach(), reduce_op="mean").item()
        steps = self.trainer.estimated_stepping_batches
        self.metrics.write(epoch=self.current_epoch + 1, step=self.global_step + 1, steps=steps, loss=mean)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        images, labels = batch
        correct = (self.network(images).argmax(dim=1) == labels).sum()
        self.counts += torch.tensor([correct.item(), len(labels)])

    def on_validation_epoch_end(self) -> None:
        counts = self.trainer.strategy.reduce(self.counts.to(self.device), reduce_op="sum")
        correct, images = counts.long().tolist()
        self.counts.zero_()
        self.metrics.write(
            epoch=self.current_epoch + 1, step=self.global_step, val_accuracy=correct / images, images=images
        )
        self.world.say(
            f"epoch {self.current_epoch + 1}/{self.options.epochs}  accuracy {correct / images:.1%} of {images}"
        )


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
    torch.manual_seed(0)
    images = Images(options, world)
    ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = lightning.Trainer(
        accelerator="gpu" if world.device.type == "cuda" else "cpu",
        devices=ranks_per_node,
        num_nodes=world.size // ranks_per_node,
        strategy="ddp",
        plugins=[TorchElasticEnvironment()],  # RANK, WORLD_SIZE ..., which ctrain sets; not those of one scheduler
        precision=choose_precision(world.device),
        max_epochs=options.epochs,
        callbacks=[ModelCheckpoint(run_dir() / "checkpoint", filename="{epoch}", save_last="link")],
        use_distributed_sampler=False,  # its validation counts some images twice, to give all ranks as many
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    resumed = resume_dir() / "last.ckpt" if resume_dir() else None
    if resumed and not resumed.exists():
        raise SystemExit(f"{resumed.parent} has no checkpoint to resume from")
    trainer.fit(Classifier(options, len(images.train.classes), world), images, ckpt_path=resumed)
    return 0


if __name__ == "__main__":
    finish(main)
