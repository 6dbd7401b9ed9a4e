"""Images to classify: an ImageFolder tree, or random ones to measure speed. Loaders yield bytes, Normalize makes the
numbers for the network of them on the GPU, whose memory bandwidth is the larger one."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from example import InputError, World, cores
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from torchvision.datasets import FakeData, ImageFolder
from torchvision.datasets.folder import find_classes
from torchvision.transforms import CenterCrop, Compose, PILToTensor, RandomHorizontalFlip, RandomResizedCrop, Resize

PHOTO_SIZE = 224  # pixels
# Of ImageNet's channels
MEANS, DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `load` and `make_loaders` want to know."""
    add = parser.add_argument_group("images").add_argument
    add("--data", type=Path, default="/data", metavar="DIR", help="directory with train/ and val/")
    add("--synthetic", action="store_true", help="random images, to measure speed")
    add("--image-size", type=int, default=0, metavar="PIXELS", help="0: 224, less for small images")
    add(
        "--augment",
        choices=("auto", "none", "full"),
        default="auto",
        help="full: random crops and flips; auto: of photos",
    )
    add("--batch-size", type=int, default=32, metavar="N", help="images per rank and step")
    add("--workers", type=int, metavar="N", help="loader processes per rank; None: as the rank's cores allow")
    add("--seed", type=int, default=42)


class Images(NamedTuple):
    train: Dataset
    val: Dataset
    classes: int


class Numbered(Dataset):
    """Images by number: epoch * images + index. The number decides how an image is cropped and flipped, so a run that
    is resumed, by however many ranks and loader processes, trains on the same crops."""

    def __init__(self, images: Dataset, seed: int) -> None:
        self.images, self.seed = images, seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        torch.default_generator.manual_seed(self.seed + number)
        return self.images[number % len(self.images)]


class Share(DistributedSampler):
    """The numbers of a rank's images in an epoch, without the first `seen`."""

    seen = 0

    def __iter__(self) -> Iterator[int]:
        first = self.epoch * len(self.dataset)
        return (first + index for index in itertools.islice(super().__iter__(), self.seen, None))


class Normalize(torch.nn.Module):
    """Bytes as numbers with the mean 0 and the standard deviation 1."""

    def __init__(self) -> None:
        super().__init__()
        for name, values in (("means", MEANS), ("deviations", DEVIATIONS)):
            self.register_buffer(name, 255 * torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images - self.means) / self.deviations


def load(options: argparse.Namespace, ranks: int) -> Images:
    """Lists the images, which takes minutes for ImageNet. Raises InputError."""
    if options.synthetic:
        step, size = options.batch_size * ranks, options.image_size or PHOTO_SIZE
        train, val = (FakeData(steps * step, (3, size, size), 1000, PILToTensor()) for steps in (100, 2))
        return Images(Numbered(train, options.seed), val, 1000)
    parts = [options.data / part for part in ("train", "val")]
    try:
        # A class that only one part has would shift the labels of all after it.
        for name in sorted(set.symmetric_difference(*(set(find_classes(part)[0]) for part in parts))):
            raise InputError(f"{options.data}: class {name} is in only one of train/ and val/")
        train, val = map(ImageFolder, parts)
        with Image.open(train.samples[0][0]) as first:
            size = options.image_size or min(PHOTO_SIZE, *first.size)  # never enlarges
    except OSError as error:
        advice = "Pass --data DIR, with train/ and val/, and a directory per class in each"
        raise InputError(f"{error}. {advice}") from error
    # A mirrored digit or letter is another one, and small images are rarely photos.
    full = options.augment == "full" or (options.augment == "auto" and size >= PHOTO_SIZE)
    center = [Resize(size * 256 // PHOTO_SIZE if full else size), CenterCrop(size)]
    train.transform = Compose([*([RandomResizedCrop(size), RandomHorizontalFlip()] if full else center), PILToTensor()])
    val.transform = Compose([*center, PILToTensor()])
    return Images(Numbered(train, options.seed), val, len(train.classes))


def make_loaders(images: Images, options: argparse.Namespace, world: World) -> tuple[DataLoader, DataLoader]:
    """This rank's share of the images to train on, dealt anew in each epoch, and of those to validate."""
    workers = options.workers
    if workers is None:  # beside a GPU, all cores but the one that feeds it decode and crop
        workers = cores() - 1 if world.device.type == "cuda" else min(2, cores() - 1)
    more = {"batch_size": options.batch_size, "pin_memory": world.device.type == "cuda", "num_workers": workers}
    if workers:  # of a fork server: to fork a process in which MPI and InfiniBand run is unsafe
        more.update(persistent_workers=True, multiprocessing_context="forkserver")
    share = Share(images.train, world.size, world.rank, seed=options.seed)
    # A short last batch would weigh as much as a full one in the average over ranks.
    train = DataLoader(images.train, sampler=share, drop_last=len(share) >= options.batch_size, **more)
    # Each image is in one share; a DistributedSampler counts some twice, to give all ranks as many.
    return train, DataLoader(Subset(images.val, range(world.rank, len(images.val), world.size)), **more)
