"""GPT-2 (Radford et al., 2019) as nanoGPT writes it, or Llama (Touvron et al., 2023), but with the query, key and value
apart, so that tensor parallelism can cut them by heads, and without weights that the first and the last pipeline stage
would share."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import torch
from gpt_shape import Shape
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

TRAINED_ON = 8192  # positions, before Llama 3.1


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.head_size = shape.width, shape.width // shape.heads
        kept = shape.key_value_heads * self.head_size
        self.rope, self.shares = (shape.rope_theta, shape.rope_factor) if shape.is_llama else None, kept < width
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, size, bias=not shape.is_llama) for size in (width, kept, kept, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (layer(x).unflatten(-1, (-1, self.head_size)) for layer in (self.query, self.key, self.value))
        # (batch, heads, characters, head size); torch chooses flash attention where it can.
        query, key, value = (part.transpose(1, 2) for part in parts)
        if self.rope:
            query, key = turn(query, *self.rope), turn(key, *self.rope)
        more = {"enable_gqa": True} if self.shares else {}
        heads = functional.scaled_dot_product_attention(query, key, value, is_causal=True, **more)
        return self.output(heads.transpose(1, 2).flatten(2))


def turn(x: torch.Tensor, theta: float, factor: float) -> torch.Tensor:
    """Rotary positions (Su et al., 2021): the pair of numbers i and i + half of each head turns by its position. Those
    that turn less than once in 8192 positions are slower by `factor`, those that turn 4 times are not (Llama 3.1)."""
    half = x.shape[-1] // 2
    speeds = theta ** -(torch.arange(half, device=x.device) / half)
    fast = ((TRAINED_ON * speeds / (2 * math.pi) - 1) / (4 - 1)).clamp(0, 1)
    speeds = speeds * (fast + (1 - fast) / factor)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * speeds
    first, second = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).type_as(x)


class Block(nn.Module):
    def __init__(self, shape: Shape, wide_layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        width, wide, bias = shape.width, shape.inner, not shape.is_llama
        self.norm1, self.attention, self.norm2 = norm_of(shape), Attention(shape), norm_of(shape)
        self.up, self.down = wide_layer(width, wide, bias), wide_layer(wide, width, bias)
        self.gate = wide_layer(width, wide, bias) if shape.is_llama else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        normed = self.norm2(x)
        if self.gate is None:
            return x + self.down(functional.gelu(self.up(normed), approximate="tanh"))
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def norm_of(shape: Shape) -> nn.Module:
    return nn.RMSNorm(shape.width, shape.norm_eps) if shape.is_llama else nn.LayerNorm(shape.width)


class GPT(nn.Module):
    """The whole model, or a pipeline stage: what the stage lacks is None, and names stay those of the whole.

    `bf16`: multiply in bfloat16. `recompute`: the backward pass computes the activations of blocks again.
    `wide_layer`: what takes the place of nn.Linear. Parameters are to be filled with `first_value`.
    """

    def __init__(
        self,
        shape: Shape,
        vocabulary: int,
        bf16: bool = False,
        recompute: bool = False,
        wide_layer: Callable[..., nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        self.bf16, self.recompute = bf16, recompute
        self.tokens = nn.Embedding(vocabulary, shape.width)
        self.positions = None if shape.is_llama else nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleDict({str(number): Block(shape, wide_layer) for number in range(shape.layers)})
        self.norm, self.head = norm_of(shape), nn.Linear(shape.width, vocabulary, bias=False)

    def keep_stage(self, stage: int, stages: int) -> None:
        """Drops all but pipeline stage `stage`."""
        names = list(self.blocks)
        for name in names[: len(names) * stage // stages] + names[len(names) * (stage + 1) // stages :]:
            del self.blocks[name]
        if stage > 0:
            self.tokens = self.positions = None
        if stage < stages - 1:
            self.norm = self.head = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            if self.tokens is not None:
                places = torch.arange(x.shape[1], device=x.device)
                x = self.tokens(x) if self.positions is None else self.tokens(x) + self.positions(places)
            for block in self.blocks.values():
                x = checkpoint(block, x, use_reentrant=False) if self.recompute and self.training else block(x)
            return self.head(self.norm(x)) if self.head is not None else x


def first_value(name: str, shape: torch.Size, layers: int, seed: int) -> torch.Tensor:
    """What a parameter of the whole model is before the first step, on the CPU.

    It depends on no other one: a rank makes those that it has, and all layouts begin with the same model.
    """
    if name.endswith("bias"):
        return torch.zeros(shape)
    if len(shape) == 1:  # the scale of a norm
        return torch.ones(shape)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    # What is added to the residual stream is smaller the more layers add to it.
    shrink = (2 * layers) ** -0.5 if name.endswith(("output.weight", "down.weight")) else 1
    return torch.empty(shape).normal_(std=0.02 * shrink, generator=generator)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def continue_text(model: nn.Module, text: torch.Tensor, count: int, context: int, seed: int) -> torch.Tensor:
    """`text`, one sequence of tokens, and `count` more by the model's probabilities: on all ranks the same."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        chances = model(text[None, -context:])[0, -1].float().softmax(-1).cpu()
        text = torch.cat([text, torch.multinomial(chances, 1, generator=generator).to(text.device)])
    return text
