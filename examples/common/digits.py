"""The task of the small examples in PyTorch: a network that learns handwritten digits in seconds on a CPU."""

from __future__ import annotations

from pathlib import Path

import pictures
import torch
from pictures import SIZE
from torch import nn
from torch.utils.data import TensorDataset


def load(data: Path) -> tuple[TensorDataset, TensorDataset]:
    """DATA/train and DATA/val in memory. Ends the program if there are none."""
    parts = (pictures.load(data / part) for part in ("train", "val"))
    train, val = (TensorDataset(*map(torch.from_numpy, part)) for part in parts)
    return train, val


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
