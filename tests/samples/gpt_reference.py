"""Runs in the image: the GPT of the examples and transformers' GPT-2, with the same weights, give the same logits."""

from __future__ import annotations

import sys

sys.path.insert(0, "/opt/ctrain/examples/common")
import torch
from gpt_model import GPT  # type: ignore[import-not-found]  # it is in the image
from transformers import GPT2Config, GPT2LMHeadModel  # type: ignore[import-not-found]  # in the image

torch.manual_seed(0)
ours = GPT(vocabulary=50, context=32, layers=3, heads=4, width=64, bf16=False, recompute=False).eval()
for parameter in ours.parameters():  # else biases, and the scales of norms, would be the same numbers everywhere
    torch.nn.init.normal_(parameter, std=0.2)
shape = GPT2Config(vocab_size=50, n_positions=32, n_layer=3, n_head=4, n_embd=64, tie_word_embeddings=False)
theirs = GPT2LMHeadModel(shape).eval()
state = {"transformer.wte": ours.tokens, "transformer.wpe": ours.positions, "transformer.ln_f": ours.norm}
weights = {f"{name}.{key}": value for name, module in state.items() for key, value in module.state_dict().items()}
weights["lm_head.weight"] = ours.head.weight
for number, block in ours.blocks.items():
    to, attention = f"transformer.h.{number}", block.attention
    for name, module in (("ln_1", block.norm1), ("ln_2", block.norm2)):
        weights |= {f"{to}.{name}.{key}": value for key, value in module.state_dict().items()}
    fused = (attention.query, attention.key, attention.value)
    # Its layers keep their weights transposed.
    weights[f"{to}.attn.c_attn.weight"] = torch.cat([layer.weight for layer in fused]).T
    weights[f"{to}.attn.c_attn.bias"] = torch.cat([layer.bias for layer in fused])
    others = (("attn.c_proj", attention.output), ("mlp.c_fc", block.up), ("mlp.c_proj", block.down))
    for name, layer in others:
        weights |= {f"{to}.{name}.weight": layer.weight.T, f"{to}.{name}.bias": layer.bias}
theirs.load_state_dict(weights)
tokens = torch.randint(50, (4, 32))
with torch.no_grad():
    mine, expected = ours(tokens), theirs(tokens).logits
print("largest logit", expected.abs().max().item(), "difference", (mine - expected).abs().max().item())
torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)
