"""The task of the small examples: 1,797 handwritten digits, and a network that learns them in seconds on a CPU."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

SIZE = 32


def make_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, default="/data", metavar="DIR", help="directory with train/ and val/")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="pictures per rank and step")
    return parser


def load(data: Path) -> tuple[TensorDataset, TensorDataset]:
    """DATA/train and DATA/val, which have a directory per digit, in memory. Ends the program if there are none."""
    transform = transforms.Compose(
        [
            transforms.Grayscale(),
            transforms.Resize((SIZE, SIZE)),
            transforms.ToTensor(),
            transforms.Normalize(0.3, 0.35),  # their mean and standard deviation
        ]
    )
    parts = []
    for part in ("train", "val"):
        try:
            images, labels = zip(*ImageFolder(data / part, transform))
        except FileNotFoundError as error:
            raise SystemExit(f"{error}. Pass --data DIR, as made by examples/resnet50/prepare_digits.py") from error
        parts.append(TensorDataset(torch.stack(images), torch.tensor(labels)))
    return parts[0], parts[1]


def make_model() -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * SIZE * SIZE // 16, 10)),
    )


@torch.no_grad()
def count_correct(model: nn.Module, val: TensorDataset, rank: int, size: int, device: torch.device) -> torch.Tensor:
    """How many of a rank's share of the pictures are classified correctly; each picture is in one share."""
    images, labels = (tensor[rank::size].to(device) for tensor in val.tensors)
    return (model(images).argmax(dim=1) == labels).sum()
