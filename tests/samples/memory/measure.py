"""Measures the live bytes of examples/gpt at the peak of a step, on fake tensors: nothing is allocated or computed.

    apptainer exec IMAGE python tests/samples/memory/measure.py > tests/samples/memory/measured.csv

Needs torch, and no GPU. What is counted are the bytes of all tensors, not what an allocator rounds up or keeps.
`ddp` is one rank that keeps its gradients, as DDP does in its buckets. Other strategies: measure_ranks.py.
"""

# ruff: noqa: E402  # the paths of the examples come before the imports
from __future__ import annotations

import csv
import sys
import weakref
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path[:0] = [str(EXAMPLES / "gpt"), str(EXAMPLES / "common")]

import strategies
import torch
from config import Config
from example import World
from gpt_model import GPT
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Case(NamedTuple):
    layers: int
    heads: int
    width: int
    context: int
    vocabulary: int
    strategy: str
    ranks: int
    micro_batch: int
    bf16: bool = True
    recompute: bool = False
    micro_batches: int = 1
    model: str = "gpt2"
    kv_heads: int = 0
    ffn: int = 0


GPT2, MEDIUM, LARGE, XL = (12, 12, 768), (24, 16, 1024), (36, 20, 1280), (48, 25, 1600)
CASES = [
    *(Case(*shape, 1024, 50257, "ddp", 1, size) for shape in (GPT2, MEDIUM, LARGE, XL) for size in (1, 16, 64)),
    *(Case(*shape, 1024, 50257, "ddp", 1, 16, bf16=False) for shape in (GPT2, MEDIUM, XL)),
    *(Case(*shape, 1024, 50257, "ddp", 1, 16, recompute=True) for shape in (GPT2, MEDIUM, XL)),
    *(Case(*shape, 1024, 50257, "ddp", 1, 8, micro_batches=4) for shape in (GPT2, XL)),
    *(Case(6, 6, 384, 256, 100, "ddp", 1, size) for size in (16, 64)),
    *(Case(12, 12, 768, context, 50257, "ddp", 1, size) for context, size in ((8192, 4), (4096, 8))),
]  # fmt: skip  # rows, as they are read

# python measure.py llama > measured_llama.csv
OF_LLAMA = [
    Case(8, 8, 512, 512, 2000, "ddp", 1, 8, bf16, recompute, 1, "llama", kv_heads, 1408)
    for kv_heads in (0, 2)
    for bf16, recompute in ((True, False), (False, False), (True, True))
]


class Live(TorchDispatchMode):
    """Counts the bytes of the storages that are alive, and the most that ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.total = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage())
        self.most = max(self.most, self.total)
        return result

    def count(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key not in self.sizes:
            weakref.finalize(storage, self.drop, key)
        self.total += storage.nbytes() - self.sizes.get(key, 0)
        self.sizes[key] = storage.nbytes()

    def drop(self, key: int) -> None:
        self.total -= self.sizes.pop(key)


def peak(case: Case) -> int:
    live = Live()
    batch = case.ranks * case.micro_batch * case.micro_batches
    config = Config(
        layers=case.layers, heads=case.heads, width=case.width, context=case.context, bf16=case.bf16,
        strategy="single", batch=batch, micro_batch=case.micro_batch, recompute=case.recompute,
        model=case.model, kv_heads=case.kv_heads, ffn=case.ffn,
    )  # fmt: skip  # rows, as they are read
    options = (config, case.vocabulary, case.bf16, case.recompute)
    strategies.Strategy._make_part = lambda *_: GPT(*options)  # fake ones cannot be moved
    strategies.clip = lambda *_: 0.0  # it looks at a value, which fake tensors have not; its norms are small
    with FakeTensorMode(), live:
        strategy = strategies.Strategy(config, World(0, case.ranks, 0, torch.device("cpu")), case.vocabulary)
        clear = strategy.optimizer.zero_grad
        strategy.optimizer.zero_grad = lambda: clear(set_to_none=False)
        tokens = torch.zeros(batch, case.context + 1, dtype=torch.int64)
        for _ in range(3):  # the first makes the optimizer's state
            live.most = 0
            strategy.step(tokens, 1e-3)
    return live.most


def main() -> None:
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow((*Case._fields, "bytes", "torch"))
    for case in OF_LLAMA if sys.argv[1:] == ["llama"] else CASES:
        rows.writerow((*case, peak(case), torch.__version__))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
