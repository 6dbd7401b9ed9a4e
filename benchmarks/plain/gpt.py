"""A GPT and its training loop, the shortest that is correct, in the manner of nanoGPT: examples/gpt is measured by it.

    python gpt.py --layers=4 --heads=4 --width=256 --context=64 --batch=16 --micro_batch=4 --steps=10 --bf16=false

Prints an object per step. It trains on the licences in the image, alone, on a GPU if it sees one.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

TEXTS = Path("/usr/share/common-licenses")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, context: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.tokens(x) + self.positions.weight)))
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def main() -> None:
    settings = dict(word[2:].split("=") for word in sys.argv[1:])
    shape = [int(settings[key]) for key in ("context", "layers", "heads", "width")]
    batch, micro_batch, steps = (int(settings[key]) for key in ("batch", "micro_batch", "steps"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = "".join(path.read_text(errors="replace") for path in sorted({path.resolve() for path in TEXTS.iterdir()}))
    vocabulary = sorted(set(text))
    numbers = {character: number for number, character in enumerate(vocabulary)}
    tokens = torch.tensor([numbers[character] for character in text])

    model = GPT(len(vocabulary), *shape).to(device)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=device == "cuda")
    began = time.monotonic()
    for step in range(steps):
        total = 0.0
        for _ in range(batch // micro_batch):
            starts = torch.randint(len(tokens) - shape[0], (micro_batch,))
            part = torch.stack([tokens[start : start + shape[0] + 1] for start in starts]).to(device)
            with torch.autocast(device, torch.bfloat16, enabled=settings["bf16"] == "true"):
                loss = model(part[:, :-1], part[:, 1:]) * micro_batch / batch
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss, now = float(total), time.monotonic()  # waits for a GPU
        print(json.dumps({"step": step + 1, "loss": loss, "seconds": now - began}), flush=True)
        began = now


if __name__ == "__main__":
    main()
