"""The characters of a text, and which of them each step sees."""

from __future__ import annotations

from pathlib import Path

import torch
from config import Config, ConfigError

LICENCES = "/usr/share/common-licenses"  # real English that Debian's and Ubuntu's images have


class Corpus:
    """A text as numbers: the last tenth is for validation."""

    def __init__(self, config: Config, vocabulary: str = "") -> None:
        path = Path(config.data or ("/data" if Path("/data").is_dir() else LICENCES))
        # GPL and GPL-3 are one file under two names.
        files = sorted({file.resolve() for file in path.rglob("*")} if path.is_dir() else {path})
        text = "".join(file.read_text(errors="replace") for file in files if file.is_file())
        if len(text) < 20 * (config.context + 1):
            raise ConfigError(f"{path} has {len(text)} characters; context={config.context} needs 20 times as many")
        self.vocabulary = vocabulary or "".join(sorted(set(text)))
        if unknown := set(text) - set(self.vocabulary):
            raise ConfigError(f"{path} has characters that the checkpoint does not know, such as {min(unknown)!r}")
        numbers = {character: number for number, character in enumerate(self.vocabulary)}
        tokens = torch.tensor([numbers[character] for character in text])
        self.config, cut = config, len(text) * 9 // 10
        self.train, self.validation = tokens[:cut], tokens[cut:]

    def batch(self, step: int) -> torch.Tensor:
        """The sequences of a step, whatever the number of ranks: (batch, context + 1)."""
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + step)
        starts = torch.randint(len(self.train) - self.config.context, (self.config.batch, 1), generator=generator)
        return self.train[starts + torch.arange(self.config.context + 1)]

    def unigram_entropy(self) -> float:
        """In nats per character: the loss of the best model that does not look at what came before."""
        shares = torch.bincount(self.train).double() / len(self.train)
        return -(shares * shares.clamp(min=1e-12).log()).sum().item()
