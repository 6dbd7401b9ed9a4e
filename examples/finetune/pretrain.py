"""Makes the weights that are fine-tuned: a tokenizer, and a small ModernBERT that learnt to predict masked tokens."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from example import Metrics
from late import one_late, start_reading
from text import passages
from tokenizers import ByteLevelBPETokenizer
from torch.utils.data import DataLoader
from transformers import AutoModelForMaskedLM, AutoTokenizer, ModernBertConfig, PreTrainedTokenizerFast

LR = 2e-3
MASKED = 0.15  # of the tokens, as for BERT
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
# Passages have no mark at their beginning; the class is found from the mean of all tokens.
SPECIAL = {f"{token}_token_id": 0 for token in ("pad", "bos", "eos", "cls", "sep")}


def make_tokenizer(texts: list[str], directory: Path) -> None:
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=2000, special_tokens=["[PAD]", "[MASK]"], show_progress=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer)
    fast.add_special_tokens({"pad_token": "[PAD]", "mask_token": "[MASK]"})
    fast.save_pretrained(directory)


def mask(tokens: torch.Tensor, mask_token: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Hide some tokens, and ask for these alone: -100 is not counted."""
    hidden = torch.rand(tokens.shape, generator=generator).to(tokens.device) < MASKED
    return {"input_ids": tokens.masked_fill(hidden, mask_token), "labels": tokens.masked_fill(~hidden, -100)}


def endless(loader: DataLoader) -> Iterator[list[torch.Tensor]]:
    while True:
        yield from loader


def pretrain(
    texts: list[tuple[str, int]], options: Namespace, accelerator: Accelerator, metrics: Metrics, directory: Path
) -> None:
    """Write tokenizer and model to the directory, for `from_pretrained`."""
    if accelerator.is_main_process:
        make_tokenizer([text for text, _ in texts], directory)
    accelerator.wait_for_everyone()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    torch.manual_seed(0)
    shape = ModernBertConfig(vocab_size=len(tokenizer), classifier_pooling="mean", **SHAPE, **SPECIAL)
    model = AutoModelForMaskedLM.from_config(shape)
    optimizer = torch.optim.AdamW(model.parameters(), LR)
    loader = DataLoader(passages(texts, tokenizer, options.length), options.batch_size, shuffle=True, drop_last=True)
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    generator = torch.Generator().manual_seed(accelerator.process_index)

    def make_steps() -> Iterator[tuple[int, Callable[[], Any]]]:
        for step, (tokens, _) in zip(range(1, options.pretrain_steps + 1), endless(loader)):
            loss = wrapped(**mask(tokens, tokenizer.mask_token_id, generator)).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            yield step, start_reading(accelerator.reduce(loss.detach(), "mean"))

    for step, read in one_late(make_steps()):
        mean = read()
        metrics.write(phase="pretrain", step=step, steps=options.pretrain_steps, loss=mean)
        if step in (1, options.pretrain_steps):
            accelerator.print(f"pretraining, step {step}/{options.pretrain_steps}  loss {mean:.2f}")
    if accelerator.is_main_process:
        model.save_pretrained(directory)
    accelerator.wait_for_everyone()
