"""The shape of a model, as settings: that of a GPT-2, or of a Llama."""

from __future__ import annotations

from dataclasses import dataclass

from example import InputError

OF_LLAMA = ("kv_heads", "ffn", "rope_theta", "rope_factor", "norm_eps")


@dataclass(frozen=True)
class Shape:
    model: str = "gpt2"  # or llama: RMSNorm, rotary positions, SwiGLU, keys and values for several heads, no biases
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64  # tokens that the model sees
    kv_heads: int = 0  # of keys and values in a llama; 0: as many as heads
    ffn: int = 0  # the wide layer of a llama; 0: four times the width
    rope_theta: float = 10_000.0  # of a llama: the larger, the slower positions turn
    rope_factor: float = 1.0  # of a llama: slow positions turn slower by it; 8 in Llama 3.1, 32 in Llama 3.2
    norm_eps: float = 1e-5  # of a llama: added to the mean square in RMSNorm

    @property
    def is_llama(self) -> bool:
        return self.model == "llama"

    @property
    def key_value_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def inner(self) -> int:
        return self.ffn or 4 * self.width

    def check(self, tp: int, sequence_parallel: bool) -> None:
        """Raises InputError for what cannot be, or what `tp` ranks cannot share."""
        changed = [name for name in OF_LLAMA if getattr(self, name) != getattr(Shape, name)]
        if changed and not self.is_llama:
            raise InputError(f"{changed[0]} is a setting of model=llama, not of model={self.model}")
        divisors = [("width", self.width, "heads", self.heads), ("heads", self.heads, "tp", tp)]
        divisors += [("heads", self.heads, "kv_heads", self.key_value_heads)]
        divisors += [("kv_heads", self.key_value_heads, "tp", tp), ("ffn", self.inner, "tp", tp)]
        divisors += [("context", self.context, "tp", tp)] if sequence_parallel else []
        for name, number, other, divisor in divisors:
            if number % divisor:
                raise InputError(f"{name}={number} must be a multiple of {other}={divisor}")
        if self.is_llama and self.width // self.heads % 2:
            raise InputError(f"width={self.width} must be an even multiple of heads={self.heads}: positions turn pairs")
