"""The shape of a decoder-only transformer: a preset, its dimensions, or derived from a number of parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import UsageError

SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
LARGEST = 1e16


@dataclass(frozen=True)
class Model:
    """A GPT. `assumed`: its shape was derived from its number of parameters."""

    layers: int
    hidden: int
    heads: int
    sequence: int = 2048
    vocabulary: int = 51200
    assumed: bool = False


# GPT-2: Radford et al. 2019. GPT-3: Brown et al. 2020, with the vocabulary of Narayanan et al. 2021. MT-NLG: Smith et
# al. 2022.
PRESETS = {
    "gpt2": Model(12, 768, 12, 1024, 50257),
    "gpt2-medium": Model(24, 1024, 16, 1024, 50257),
    "gpt2-large": Model(36, 1280, 20, 1024, 50257),
    "gpt2-xl": Model(48, 1600, 25, 1024, 50257),
    "gpt3-175b": Model(96, 12288, 96),
    "mt-nlg-530b": Model(105, 20480, 128),
}


def find_model(name: str) -> Model:
    """The model for a preset's name, or for a number of parameters such as 7.5B. Raises UsageError."""
    if name in PRESETS:
        return PRESETS[name]
    if name[:1].isdigit():
        return _shape_of(parse_amount("MODEL", name))
    hint = suggest(name, PRESETS) or f"Models: {', '.join(PRESETS)}; or a number of parameters, as in 7.5B"
    raise UsageError(f"unknown model {name!r}", hint)


def parse_amount(what: str, text: str) -> float:
    """A positive number with a scale, as in 300B or 1.5e9. Raises UsageError, which names `what`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([KMBT]?)", text, re.IGNORECASE)
    amount = float(match[1]) * SCALES[match[2].upper()] if match else 0
    if not 0 < amount <= LARGEST:
        raise UsageError(f"{what} must be a positive number such as 7.5B or 3e11, up to {LARGEST:g}, not {text!r}")
    return amount


def _shape_of(parameters: float) -> Model:
    """A shape with GPT-3's proportions: hidden = 128 x layers, heads of about 128, both numbers multiples of 8, so that
    layers and heads divide into stages and tensor-parallel ranks."""
    layers = 8 * max(1, round((parameters / (12 * 128**2)) ** (1 / 3) / 8))
    rows = Model.vocabulary + Model.sequence
    hidden = ((rows**2 + 48 * layers * parameters) ** 0.5 - rows) / (24 * layers)  # 12 l h^2 + (V + s) h = parameters
    heads = 8 * max(1, round(hidden / 128 / 8))
    return Model(layers, heads * 2 * max(1, round(hidden / heads / 2)), heads, assumed=True)
