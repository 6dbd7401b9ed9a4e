"""A text as numbers, and which of them each step sees.

A text of characters is read into memory. One that tokens.py has prepared stays on disk: the ranks of a
node share what the system keeps of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import torch
from example import InputError
from tokens import Tokens, text_files

LICENCES = "/usr/share/common-licenses"  # real English that Debian's and Ubuntu's images have
VALIDATED = 256
COUNTED = 10_000_000  # tokens, for the entropy


class Characters:
    """`vocabulary`: that of a checkpoint, or none yet."""

    def __init__(self, path: Path, vocabulary: str) -> None:
        text = "".join(file.read_text(errors="replace") for file in text_files(path))
        self.vocabulary = vocabulary or "".join(sorted(set(text)))
        if unknown := set(text) - set(self.vocabulary):
            raise InputError(f"{path} has characters that the checkpoint does not know, such as {min(unknown)!r}")
        known, codes = (numpy.frombuffer(part.encode("utf-32-le"), "<u4") for part in (self.vocabulary, text))
        self.size, self.numbers = len(known), numpy.searchsorted(known, codes).astype(numpy.int32)

    def decode(self, numbers: list[int]) -> str:
        return "".join(self.vocabulary[number] for number in numbers)


class Corpus:
    """A text; the last tenth is for validation.

    `data`: a text file, a directory of them, or one that tokens.py made; empty: /data if it is mounted, else the
    licences in the image. `vocabulary`: what the checkpoint to resume from has of another Corpus.
    """

    def __init__(self, data: str, context: int, vocabulary: str = "") -> None:
        path = Path(data or ("/data" if Path("/data").is_dir() else LICENCES))
        text = (Tokens if Tokens.are_in(path) else Characters)(path, vocabulary)
        if len(text.numbers) < 20 * context:
            unit = type(text).__name__.lower()
            raise InputError(f"{path} has {len(text.numbers)} {unit}; context={context} needs {20 * context}")
        self.vocabulary, self.size, self.decode = text.vocabulary, text.size, text.decode
        self.context, cut = context, len(text.numbers) * 9 // 10
        self.train, self.validation = text.numbers[:cut], text.numbers[cut:]

    def batch(self, step: int, size: int, seed: int) -> torch.Tensor:
        """The sequences of a step, the same for any number of ranks: (size, context + 1)."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(self.train) - self.context, (size, 1), generator=generator)
        return self._sequences(self.train, starts)

    def batches(self, steps: range, size: int, seed: int) -> Iterator[torch.Tensor]:
        """Those of steps. A thread makes the next one meanwhile."""
        coming = deque()
        with ThreadPoolExecutor(1) as thread:
            for step in steps:
                coming.append(thread.submit(self.batch, step, size, seed))
                if len(coming) > 1:
                    yield coming.popleft().result()
            yield from (last.result() for last in coming)

    def validation_batches(self, size: int) -> Iterator[torch.Tensor]:
        """About VALIDATED sequences, always the same, in batches of `size`; a short text is repeated."""
        lines = (len(self.validation) - 1) // self.context
        for first in range(0, max(1, VALIDATED // size) * size, size):
            yield self._sequences(self.validation, torch.arange(first, first + size)[:, None] % lines * self.context)

    def _sequences(self, numbers: numpy.ndarray, starts: torch.Tensor) -> torch.Tensor:
        found = numbers[(starts + torch.arange(self.context + 1)).numpy()]
        batch = torch.from_numpy(numpy.asarray(found, numpy.int64))
        return batch.pin_memory() if torch.cuda.is_available() else batch  # which GPUs copy from by themselves

    def unigram_entropy(self) -> float:
        """In nats per token: the loss of the best model that does not look at what came before."""
        counts = numpy.bincount(self.train[:COUNTED])
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * numpy.log(shares)).sum())
