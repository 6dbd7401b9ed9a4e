"""The learning rate of a step."""

from __future__ import annotations

import math
from typing import Any


def learning_rate(config: Any, step: int) -> float:
    """A linear warm-up, then half a cosine down to a tenth. `config` has `lr`, the highest, `warmup` and `steps`."""
    if step <= config.warmup:
        return config.lr * step / config.warmup
    return config.lr * (0.55 + 0.45 * math.cos(math.pi * (step - config.warmup) / (config.steps - config.warmup)))
