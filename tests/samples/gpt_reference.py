"""Runs in the image: the GPT of the examples with saved weights of transformers' GPT-2 and Llama gives their logits."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, "/opt/ctrain/examples/common")
import torch
from example import InputError  # type: ignore[import-not-found]  # it is in the image
from gpt_model import GPT  # type: ignore[import-not-found]  # in the image
from gpt_shape import Shape  # type: ignore[import-not-found]  # in the image
from pretrained import Pretrained  # type: ignore[import-not-found]  # in the image
from transformers import (  # type: ignore[import-not-found]  # in the image
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

CONTEXT, VOCABULARY = 24, 50  # of 32 positions


@dataclass(frozen=True)
class Settings(Shape):  # type: ignore[misc]  # it is in the image
    weights: str = ""


COMMON = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
ROPE = {"rope_theta": 500.0, "rope_type": "default"}
ROPE_3_1 = {
    "rope_theta": 50000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
ROPE_3_1 |= {"original_max_position_embeddings": 8192}
WIDE = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "rms_norm_eps": 1e-6}


def gpt2(tied: bool) -> GPT2LMHeadModel:
    size = {"n_positions": 32, "n_layer": 3, "n_head": 4, "n_embd": 64}
    return GPT2LMHeadModel(GPT2Config(**COMMON, **size, tie_word_embeddings=tied))


def llama(tied: bool, kv_heads: int, rope: dict[str, float | str] = ROPE) -> LlamaForCausalLM:
    size = {**WIDE, "intermediate_size": 96, "max_position_embeddings": 32, "num_key_value_heads": kv_heads}
    shape = LlamaConfig(**COMMON, **size, tie_word_embeddings=tied, rope_parameters=rope)
    return LlamaForCausalLM(shape)


def refusal(settings: Settings, vocabulary: int = VOCABULARY) -> str:
    try:
        Pretrained(settings, vocabulary)
    except InputError as error:
        return str(error).replace(settings.weights, "DIR")
    return "accepted"


torch.manual_seed(0)
tokens = torch.randint(VOCABULARY, (4, CONTEXT))
SHAPE = {"layers": 3, "heads": 4, "width": 64, "context": CONTEXT}
LLAMA = {**SHAPE, "model": "llama", "ffn": 96, "rope_theta": 500.0, "norm_eps": 1e-6}
for name, theirs, shape in (
    ("gpt2 tied", gpt2(True), SHAPE),
    ("gpt2", gpt2(False), SHAPE),
    ("llama tied", llama(True, 4), LLAMA),
    ("llama", llama(False, 2), {**LLAMA, "kv_heads": 2}),
    ("llama 3.1", llama(True, 2, ROPE_3_1), {**LLAMA, "kv_heads": 2, "rope_theta": 50000.0, "rope_factor": 8.0}),
):
    for (
        parameter
    ) in theirs.eval().parameters():  # else biases, and scales of norms, would be the same numbers everywhere
        torch.nn.init.normal_(parameter, std=0.2)
    settings = Settings(**shape)
    ours = GPT(settings, VOCABULARY).eval()
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        theirs.save_pretrained(directory)
        settings = replace(settings, weights=directory)
        pretrained = Pretrained(settings, VOCABULARY)
        for key, parameter in ours.named_parameters():
            parameter.copy_(pretrained.value(key, parameter.shape))
        mine, expected = ours(tokens), theirs(tokens).logits
        for block in ours.blocks.values():  # as if positions were not slowed down
            block.attention.rope = block.attention.rope and (block.attention.rope[0], 1.0)
        fast = (ours(tokens) - expected).abs().max().item()
        wrong = {"layers": replace(settings, layers=4), "context": replace(settings, context=33)}
        refusals = {key: refusal(changed) for key, changed in wrong.items()}
        refusals["nowhere"] = refusal(replace(settings, weights="/nowhere"))
        refusals["vocabulary"] = refusal(settings, 51)
        path = Path(directory, "config.json")
        whole = json.loads(path.read_text())
        for key, change in (
            ("scaled", {"rope_parameters": {**ROPE_3_1, "high_freq_factor": 3.0}}),
            ("scaled before transformers 5", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}),
            ("bias", {"attention_bias": True}),
            ("type", {"model_type": "mixtral"}),
        ):
            path.write_text(json.dumps({**whole, **change}))
            refusals[key] = refusal(settings)
        for key, text in (
            ("empty", "{}"),
            ("list", "[]"),
            ("no heads", json.dumps(whole | {"num_attention_heads": 0})),
        ):
            path.write_text(text)
            refusals[key] = refusal(settings)
        path.write_text(json.dumps(whole))
        for key, call in (("tensor", ("blocks.7.up.weight", (256, 64))), ("shape", ("norm.weight", (65,)))):
            try:
                pretrained.value(call[0], torch.Size(call[1]))
            except InputError as error:
                refusals[key] = str(error).replace(directory, "DIR")
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)
    largest, difference = expected.abs().max().item(), (mine - expected).abs().max().item()
    print(json.dumps({"model": name, "largest logit": largest, "difference": difference, "fast": fast, **refusals}))
