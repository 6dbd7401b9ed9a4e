"""Numbers of a step that are read when the next one is on its way, so that a GPU never waits for the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


def one_late(items: Iterable[Any]) -> Iterator[Any]:
    """Each item, after the next one was made."""
    previous: list[Any] = []
    for item in items:
        yield from previous
        previous = [item]
    yield from previous


def start_reading(values: torch.Tensor) -> Callable[[], Any]:
    """Starts to copy numbers from a GPU; the function that it returns waits for them, not for what comes after them."""
    if values.device.type != "cuda":
        return values.tolist
    copy, copied = values.to("cpu", non_blocking=True), torch.cuda.Event()
    copied.record()
    return lambda: (copied.synchronize(), copy.tolist())[1]
