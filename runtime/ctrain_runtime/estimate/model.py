"""The shape of a decoder-only transformer: a preset, its dimensions, or derived from a number of parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ctrain_runtime.errors import UsageError

SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
LARGEST = 1e16


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer; by default as GPT-2 and GPT-3 are.

    `assumed`: its shape was derived from its number of parameters. `kv_heads`, `ffn` and `head_width` are 0 where they
    are the number of heads, four times the hidden size, and a head's share of it. `gated`: SwiGLU, whose first product
    is two. `tied`: the output has the table of words as its matrix. `learned_positions`: else they have no parameters.
    `biases`: else RMSNorm, without.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int = 2048
    vocabulary: int = 51200
    assumed: bool = False
    kv_heads: int = 0
    ffn: int = 0
    gated: bool = False
    tied: bool = True
    learned_positions: bool = True
    biases: bool = True
    head_width: int = 0

    @property
    def inner(self) -> int:
        """The width between the two linear maps of a layer."""
        return self.ffn or 4 * self.hidden

    @property
    def head_size(self) -> int:
        return self.head_width or self.hidden // self.heads

    @property
    def key_value_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def small_parameters(self) -> float:
        """Those of a layer's norms and biases."""
        maps = 2 + 2 * self.key_value_heads / self.heads  # query and output; key and value
        biases = maps * self.hidden + self.inner * (2 if self.gated else 1) + self.hidden
        return 4 * self.hidden + biases if self.biases else 2 * self.hidden


def parse_amount(what: str, text: str) -> float:
    """A positive number with a scale, as in 300B or 1.5e9. Raises UsageError, which names `what`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([KMBT]?)", text, re.IGNORECASE)
    amount = float(match[1]) * SCALES[match[2].upper()] if match else 0
    if not 0 < amount <= LARGEST:
        raise UsageError(f"{what} must be a positive number such as 7.5B or 3e11, up to {LARGEST:g}, not {text!r}")
    return amount


def shape_of(parameters: float) -> Model:
    """A shape with GPT-3's proportions: hidden = 128 x layers, heads of about 128, both numbers multiples of 8, so that
    layers and heads divide into stages and tensor-parallel ranks."""
    layers = 8 * max(1, round((parameters / (12 * 128**2)) ** (1 / 3) / 8))
    rows = Model.vocabulary + Model.sequence
    hidden = ((rows**2 + 48 * layers * parameters) ** 0.5 - rows) / (24 * layers)  # 12 l h^2 + (V + s) h = parameters
    heads = 8 * max(1, round(hidden / 128 / 8))
    return Model(layers, heads * 2 * max(1, round(hidden / heads / 2)), heads, assumed=True)
