"""Which packaged example trains a model with a layout."""

from __future__ import annotations

from ctrain_runtime.estimate.layout import Layout
from ctrain_runtime.estimate.model import Model

NONE = "no packaged example"
_GPT = "ctrain run gpt -- "


def is_packaged_gpt(model: Model, layout: Layout) -> bool:
    return example_for(model, layout).startswith(_GPT)


def example_for(model: Model, layout: Layout) -> str:
    """The command that trains it, without its sizes; or why there is none."""
    of_llama = (model.gated, not model.learned_positions, not model.biases)
    otherwise = (
        any(of_llama) or model.head_width or model.key_value_heads != model.heads or model.inner != 4 * model.hidden
    )
    if otherwise and (model.head_width or not all(of_llama)):
        return f"{NONE} has this model: they train GPT-2 and Llama; {_other(layout)}"
    if (layout.schedule, layout.interleave) != ("1f1b", 1) or layout.attention == "plain":
        return f"{NONE} splits layers like this; {_other(layout)}"
    if layout.precision == "fp8":
        return f"{NONE} trains in FP8; Megatron-LM does"
    if lacking := next((what for what, is_so in _lacking(layout).items() if is_so), ""):
        return f"{NONE} {lacking}; {_other(layout)}"
    strategy = layout.strategy if not layout.splits_model else f"3d tp={layout.tp} pp={layout.pp}"
    words = ["model=llama"] if model.gated else []
    words += [f"strategy={strategy}"] + ["sequence_parallel=true"] * layout.sequence_parallel
    words += ["recompute=true"] * (layout.recompute == "full") + ["offload=cpu"] * layout.offload
    words += ["bf16=true"] * (layout.precision != "fp32")
    command, usual = f"{_GPT}{' '.join(words)}", "autocast" if layout.strategy == "ddp" else "bf16"
    if not layout.splits_model or layout.strategy == "fsdp":
        return command if layout.precision in ("fp32", usual) else f"own code; with --precision {usual}: {command}"
    if layout.strategy == "zero1" and not layout.offload:
        return f"Megatron-LM; with --strategy fsdp: {command}"
    is_plain = layout.strategy == "ddp" and layout.recompute == "none" and not layout.sequence_parallel
    if is_plain and not model.gated and model.layers % layout.pp == 0:
        return f"ctrain run megatron -- --tp {layout.tp} --pp {layout.pp}"
    return f"{NONE} splits layers like this; {_other(layout)}"


def _lacking(layout: Layout) -> dict[str, bool]:
    """What no example does, and whether the layout does it."""
    return {
        "has this loss": layout.loss != "plain",
        "recomputes a part of a layer": layout.recompute == "selective",
        "splits sequences": layout.cp > 1,
        "shares within nodes alone": layout.strategy == "hsdp",
        "is compiled as a whole": layout.compiled,
    }


def _other(layout: Layout) -> str:
    return (
        f"{'llm-foundry' if layout.loss == 'fused' else 'torchtitan'} does"
        if layout.is_fsdp
        else "Megatron-LM does"
        if layout.splits_model
        else "llm.c is"
        if layout.compiled
        else "own code"
    )
