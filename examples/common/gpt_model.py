"""GPT-2 (Radford et al., 2019) as nanoGPT writes it, but with the query, key and value apart, so that tensor
parallelism can cut them by heads, and without weights that the first and the last pipeline stage would share."""

from __future__ import annotations

import zlib

import torch
from example import InputError
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_size = width // heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (layer(x).unflatten(-1, (-1, self.head_size)) for layer in (self.query, self.key, self.value))
        # (batch, heads, characters, head size); torch chooses flash attention where it can.
        heads = functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts), is_causal=True)
        return self.output(heads.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """The whole model, or a pipeline stage: what the stage lacks is None, and names stay those of the whole.

    `bf16`: multiply in bfloat16. `recompute`: the backward pass computes the activations of blocks again. Parameters
    are to be filled with `first_value`.
    """

    def __init__(
        self, vocabulary: int, context: int, layers: int, heads: int, width: int, bf16: bool, recompute: bool
    ) -> None:
        super().__init__()
        if width % heads:
            raise InputError(f"width={width} must be a multiple of heads={heads}")
        self.bf16, self.recompute = bf16, recompute
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleDict({str(number): Block(width, heads) for number in range(layers)})
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

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
                x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
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
