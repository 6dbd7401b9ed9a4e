"""The weights of the GPT in common/gpt_model.py, under megatron-core's names and cut as its ranks share them."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from gpt_model import GPT, first_value
from gpt_shape import Shape
from torch import nn

# Of a layer; both models name weight and bias alike.
LAYER = {
    "input_layernorm": "norm1",
    "self_attention.linear_proj": "attention.output",
    "pre_mlp_layernorm": "norm2",
    "mlp.linear_fc1": "up",
    "mlp.linear_fc2": "down",
}
ENDS = {
    "embedding.word_embeddings": "tokens",
    "embedding.position_embeddings": "positions",
    "decoder.final_layernorm": "norm",
    "output_layer": "head",
}


def whole(name: str, first_layer: int, gpt: Callable[[str], torch.Tensor], heads: int) -> torch.Tensor:
    """The uncut parameter `name` of a pipeline stage whose first layer has the number `first_layer`, from 0; `gpt`
    makes that of a name in common/gpt_model.py."""
    module, _, kind = name.rpartition(".")
    if module in ENDS:
        return gpt(f"{ENDS[module]}.{kind}")
    _, _, number, module = module.split(".", 3)  # decoder.layers.NUMBER.MODULE
    block = f"blocks.{first_layer + int(number)}"
    if module in LAYER:
        return gpt(f"{block}.{LAYER[module]}.{kind}")
    # linear_qkv: query, key and value of each head follow each other.
    parts = [gpt(f"{block}.attention.{part}.{kind}").unflatten(0, (heads, -1)) for part in ("query", "key", "value")]
    return torch.cat(parts, dim=1).flatten(0, 1)


@torch.no_grad()
def fill(model: nn.Module, args: argparse.Namespace, vocabulary: int, tp_rank: int) -> None:
    """Give the rank's part of the model the weights with which examples/gpt starts for the same settings."""
    with torch.device("meta"):  # shapes without memory
        shape = Shape(layers=args.layers, heads=args.heads, width=args.width, context=args.context)
        shapes = GPT(shape, vocabulary)

    def gpt(name: str) -> torch.Tensor:
        return first_value(name, shapes.get_parameter(name).shape, args.layers, args.seed)

    first_layer = model.decoder.layers[0].layer_number - 1
    for name, parameter in model.named_parameters():
        source = whole(name, first_layer, gpt, args.heads)
        if getattr(parameter, "tensor_model_parallel", False):
            missing = parameter.shape[parameter.partition_dim] * args.tp - source.shape[parameter.partition_dim]
            if missing:  # characters that do not exist, so that the ranks' parts of the vocabulary are equal
                source = torch.cat([source, source.new_zeros(missing, source.shape[1])])
            source = source.chunk(args.tp, parameter.partition_dim)[tp_rank]
        parameter.copy_(source)
