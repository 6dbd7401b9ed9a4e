"""Runs in the image: the GPT of the examples with the saved weights of transformers' GPT-2 gives its logits."""

from __future__ import annotations

import sys
import tempfile
from types import SimpleNamespace

sys.path.insert(0, "/opt/ctrain/examples/common")
import torch
from example import InputError  # type: ignore[import-not-found]  # it is in the image
from gpt2_weights import Pretrained  # type: ignore[import-not-found]  # in the image
from gpt_model import GPT  # type: ignore[import-not-found]  # in the image
from transformers import GPT2Config, GPT2LMHeadModel  # type: ignore[import-not-found]  # in the image

SHAPE = {"layers": 3, "heads": 4, "width": 64}
CONTEXT, VOCABULARY = 24, 50  # of 32 positions
torch.manual_seed(0)
tokens = torch.randint(VOCABULARY, (4, CONTEXT))
for tied in (True, False):
    size = {"vocab_size": VOCABULARY, "n_positions": 32, "n_layer": 3, "n_head": 4, "n_embd": 64}
    shape = GPT2Config(**size, bos_token_id=None, eos_token_id=None, tie_word_embeddings=tied)
    theirs = GPT2LMHeadModel(shape).eval()
    for parameter in theirs.parameters():  # else biases, and the scales of norms, would be the same numbers everywhere
        torch.nn.init.normal_(parameter, std=0.2)
    ours = GPT(VOCABULARY, CONTEXT, *SHAPE.values(), bf16=False, recompute=False).eval()
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        theirs.save_pretrained(directory)
        pretrained = Pretrained(SimpleNamespace(weights=directory, context=CONTEXT, **SHAPE), VOCABULARY)
        for name, parameter in ours.named_parameters():
            parameter.copy_(pretrained.value(name, parameter.shape))
        for wrong in ({"layers": 4}, {"context": 33}, {"weights": "/nowhere"}):
            try:
                Pretrained(SimpleNamespace(**{"weights": directory, "context": CONTEXT, **SHAPE, **wrong}), VOCABULARY)
            except InputError as error:
                print(error)
        mine, expected = ours(tokens), theirs(tokens).logits
    print("largest logit", expected.abs().max().item(), "difference", (mine - expected).abs().max().item())
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)
