"""Samples of one rank: a file of 32-bit numbers, the last of each nine is the target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

FEATURES, BATCH = 8, 4


def epochs(directory: str, rank: int) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """The batches of each epoch, read anew, as long as there are samples."""
    while data := bytearray(Path(directory, f"{rank}.bin").read_bytes()):
        samples = torch.frombuffer(data, dtype=torch.float32).reshape(-1, FEATURES + 1)
        yield [(batch[:, :-1], batch[:, -1:]) for batch in samples.split(BATCH)]
