"""The characters of a text, and which of them each step sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from example import InputError

LICENCES = "/usr/share/common-licenses"  # real English that Debian's and Ubuntu's images have
VALIDATED = 256


class Corpus:
    """A text as numbers; the last tenth is for validation.

    `data`: a text file, or a directory of them; empty: /data if it is mounted, else the licences in the image.
    """

    def __init__(self, data: str, context: int, vocabulary: str = "") -> None:
        path = Path(data or ("/data" if Path("/data").is_dir() else LICENCES))
        # GPL and GPL-3 are one file under two names.
        files = sorted({file.resolve() for file in path.rglob("*")} if path.is_dir() else {path})
        text = "".join(file.read_text(errors="replace") for file in files if file.is_file())
        if len(text) < 20 * context:
            raise InputError(f"{path} has {len(text)} characters; context={context} needs {20 * context}")
        self.vocabulary = vocabulary or "".join(sorted(set(text)))
        if unknown := set(text) - set(self.vocabulary):
            raise InputError(f"{path} has characters that the checkpoint does not know, such as {min(unknown)!r}")
        numbers = {character: number for number, character in enumerate(self.vocabulary)}
        tokens = torch.tensor([numbers[character] for character in text])
        self.context, cut = context, len(text) * 9 // 10
        self.train, self.validation = tokens[:cut], tokens[cut:]

    def batch(self, step: int, size: int, seed: int) -> torch.Tensor:
        """The sequences of a step, the same for any number of ranks: (size, context + 1)."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(self.train) - self.context, (size, 1), generator=generator)
        return self.train[starts + torch.arange(self.context + 1)]

    def validation_batches(self, size: int) -> Iterator[torch.Tensor]:
        """About VALIDATED sequences, always the same, in batches of `size`; a short text is repeated."""
        lines = self.validation.unfold(0, self.context + 1, self.context)
        for first in range(0, max(1, VALIDATED // size) * size, size):
            yield lines[torch.arange(first, first + size) % len(lines)]

    def unigram_entropy(self) -> float:
        """In nats per character: the loss of the best model that does not look at what came before."""
        shares = torch.bincount(self.train).double() / len(self.train)
        return -(shares * shares.clamp(min=1e-12).log()).sum().item()
