"""GPT-2 (Radford et al., 2019) as nanoGPT writes it, but with the query, key and value apart, so that tensor
parallelism can cut them by heads, and without weights that the first and the last pipeline stage would share."""

from __future__ import annotations

import torch
from config import Config, ConfigError
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_size = config.width // config.heads
        self.query, self.key, self.value, self.output = (nn.Linear(config.width, config.width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (layer(x).unflatten(-1, (-1, self.head_size)) for layer in (self.query, self.key, self.value))
        # (batch, heads, characters, head size); torch chooses flash attention where it can.
        heads = functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts), is_causal=True)
        return self.output(heads.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(config.width), Attention(config)
        self.norm2, self.up = nn.LayerNorm(config.width), nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """The whole model, or a pipeline stage: what the stage lacks is None, and names stay those of the whole."""

    def __init__(self, config: Config, vocabulary: int) -> None:
        super().__init__()
        if config.width % config.heads:
            raise ConfigError(f"width={config.width} must be a multiple of heads={config.heads}")
        self.bf16, self.recompute = config.bf16, config.recompute
        self.tokens, self.positions = nn.Embedding(vocabulary, config.width), nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleDict({str(number): Block(config) for number in range(config.layers)})
        self.norm, self.head = nn.LayerNorm(config.width), nn.Linear(config.width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:  # what is added to the residual stream is smaller the more layers add to it
                shrink = (2 * config.layers) ** -0.5 if name.endswith(("output.weight", "down.weight")) else 1
                nn.init.normal_(parameter, std=0.02 * shrink)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

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


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
