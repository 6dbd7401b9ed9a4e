"""Which packaged example trains a model with a layout."""

from __future__ import annotations

from ctrain_runtime.estimate.layout import Layout
from ctrain_runtime.estimate.model import Model

NONE = "no packaged example"


def example_for(model: Model, layout: Layout) -> str:
    """The command that trains it, without its sizes; or why there is none."""
    if model.gated or model.key_value_heads != model.heads or not model.learned_positions:
        return f"{NONE} has this model: they train GPTs; {_other(layout)}"
    if layout.sequence_parallel or (layout.schedule, layout.interleave) != ("1f1b", 1) or layout.attention == "plain":
        return f"{NONE} splits layers like this; {_other(layout)}"
    if layout.compiled:
        return f"{NONE} is compiled as a whole; {_other(layout)}"
    if not layout.splits_model:
        return f"ctrain run gpt -- strategy={layout.strategy}"
    if layout.strategy == "ddp" and layout.recompute == "none" and model.layers % layout.pp == 0:
        return f"ctrain run megatron -- --tp {layout.tp} --pp {layout.pp}"
    if layout.strategy in ("zero1", "fsdp"):
        return f"ctrain run gpt -- strategy=3d tp={layout.tp} pp={layout.pp}"
    return f"{NONE} splits layers like this; {_other(layout)}"


def _other(layout: Layout) -> str:
    return (
        "torchtitan does"
        if layout.strategy == "fsdp"
        else "Megatron-LM does"
        if layout.splits_model
        else "llm.c is"
        if layout.compiled
        else "own code"
    )
