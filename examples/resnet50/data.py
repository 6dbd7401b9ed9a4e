"""The images: from an ImageFolder tree, or synthetic ones to measure speed."""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

PHOTO_SIZE = 224
# Means and standard deviations of ImageNet's channels
NORMALIZE = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Images(NamedTuple):
    train: Dataset
    val: Dataset
    classes: int


class ResumableSampler(DistributedSampler):
    """A DistributedSampler that can leave out what a rank saw of the epoch before it was interrupted."""

    seen = 0

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(super().__iter__(), self.seen, None)


class Synthetic(Dataset):
    """Random images, few in memory, many by count."""

    classes = 1000

    def __init__(self, length: int, size: int) -> None:
        self.length = length
        self.pool = torch.randn(64, 3, size, size, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pool[index % len(self.pool)], index % self.classes


def find_problem(folder: Path) -> Optional[str]:
    """Why the folder can't be trained on, or None. Looks at names only: a walk of ImageNet takes minutes."""
    classes = {}
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            return f"{folder / part} is not there; --data wants a folder with train/ and val/"
        classes[part] = {entry.name for entry in (folder / part).iterdir() if entry.is_dir()}
        if not classes[part]:
            return f"{folder / part} has no class folders; each class of images wants its own"
    # A class that only one part has would shift the labels of all that follow it.
    for name in sorted(classes["train"] ^ classes["val"]):
        return f"{folder}: class {name} is in only one of train/ and val/; both must have the same classes"
    return None


def load(options: Namespace, ranks: int) -> Images:
    if options.synthetic:
        step = options.batch_size * ranks
        size = options.image_size or PHOTO_SIZE
        return Images(Synthetic(100 * step, size), Synthetic(2 * step, size), Synthetic.classes)
    train, val = (ImageFolder(Path(options.data, part)) for part in ("train", "val"))
    size = options.image_size or _own_size(train)
    # A mirrored digit or letter is another one, and small images are rarely photos.
    full = options.augment == "full" or (options.augment == "auto" and size >= PHOTO_SIZE)
    train.transform = _training_transform(size) if full else _plain_transform(size, size)
    val.transform = _plain_transform(size * 256 // PHOTO_SIZE if full else size, size)
    return Images(train, val, len(train.classes))


def _own_size(images: ImageFolder) -> int:
    """The size to train at: never enlarges."""
    with Image.open(images.samples[0][0]) as first:
        return min(PHOTO_SIZE, *first.size)


def _training_transform(size: int) -> transforms.Compose:
    crop = transforms.RandomResizedCrop(size)
    return transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.ToTensor(), NORMALIZE])


def _plain_transform(resize: int, crop: int) -> transforms.Compose:
    return transforms.Compose(
        [transforms.Resize(resize), transforms.CenterCrop(crop), transforms.ToTensor(), NORMALIZE]
    )


def train_loader(images: Images, options: Namespace, rank: int, ranks: int, workers: int) -> DataLoader:
    sampler = ResumableSampler(images.train, ranks, rank, seed=options.seed)
    # A short last batch would weigh as much as a full one in the average over ranks.
    drop_last = len(sampler) >= options.batch_size
    return _loader(images.train, options.batch_size, workers, sampler=sampler, drop_last=drop_last)


def val_loader(images: Images, options: Namespace, rank: int, ranks: int, workers: int) -> DataLoader:
    """A part for each rank without the padding of a DistributedSampler: every image counts exactly once."""
    part = Subset(images.val, range(rank, len(images.val), ranks))
    return _loader(part, options.batch_size, workers)


def _loader(dataset: Dataset, batch_size: int, workers: int, **more: object) -> DataLoader:
    # Forking a process that MPI and InfiniBand run in is unsafe, so the workers come from a fork server.
    if workers:
        more.update(num_workers=workers, persistent_workers=True, multiprocessing_context="forkserver")
    return DataLoader(dataset, batch_size, pin_memory=torch.cuda.is_available(), **more)
