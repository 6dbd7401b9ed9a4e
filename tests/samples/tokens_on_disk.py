"""Runs in the image: a text becomes tokens on disk, of which examples/gpt trains a saved GPT-2, compiled.

Prints an object. To compile means only to trace here: to make C++ of the graph takes a minute.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, "/opt/ctrain/examples/gpt")
import train  # type: ignore[import-not-found]  # it is in the image
from tokens import write  # type: ignore[import-not-found]  # in the image
from transformers import GPT2Config, GPT2LMHeadModel  # type: ignore[import-not-found]  # in the image

torch = train.torch
torch.compile = functools.partial(torch.compile, backend="eager")
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "runs", "away", "from", "it"]


def main() -> int:
    world, found = train.begin("torch"), {}
    with tempfile.TemporaryDirectory() as directory:
        text, data, weights = (Path(directory) / name for name in ("text", "tokens", "weights"))
        text.mkdir()
        for number in range(2):
            lines = (
                " ".join(WORDS[(number + 3 * line + step) % len(WORDS)] for step in range(9)) for line in range(400)
            )
            (text / f"{number}.txt").write_text("\n".join(lines) + "\n")
        found["written"] = write(text, data, None, 300).replace(directory, "DIR")
        corpus = train.Corpus(str(data), 16)
        found["size"], found["type"] = corpus.size, str(corpus.train.dtype)
        found["whole"] = corpus.decode([*corpus.train.tolist(), *corpus.validation.tolist()]) == "".join(
            path.read_text() for path in sorted(text.iterdir())
        )
        together = [batch.tolist() for batch in corpus.batches(range(3, 6), 4, 1)]
        found["batches"] = together == [corpus.batch(step, 4, 1).tolist() for step in (3, 4, 5)]
        size = {"vocab_size": corpus.size, "n_positions": 16, "n_layer": 2, "n_head": 2, "n_embd": 32}
        shape = GPT2Config(**size, bos_token_id=None, eos_token_id=None)
        torch.manual_seed(0)
        GPT2LMHeadModel(shape).save_pretrained(weights)
        settings = ["layers=2", "heads=2", "width=32", "context=16", "batch=8", "steps=40", "warmup=4", "lr=0.01"]
        settings += [f"data={data}", f"weights={weights}", "strategy=single", "compile=true", "sample=8"]
        found["losses"], _ = train.train(train.parse(settings), world, Path(directory) / "run")
        for name, make in (("tokenizer", lambda: write(text, data, None, 290)), ("text", lambda: None)):
            make()
            start = train.sharded.newest(Path(directory) / "run/checkpoint")
            try:
                train.train(
                    train.parse([*settings, f"data={data if name == 'tokenizer' else text}"]), world, data, start
                )
            except train.InputError as error:
                found[f"another {name}"] = str(error).replace(directory, "DIR")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    train.finish(main)
