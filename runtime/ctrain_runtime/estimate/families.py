"""How fast programs compute: a few numbers per kind of program and generation of GPUs, fitted to published runs."""

from __future__ import annotations

from dataclasses import dataclass

from ctrain_runtime.estimate.hardware import GpuType
from ctrain_runtime.estimate.layout import SHARDED, Layout

HOPPER = ("H100", "H200", "GH200", "B200")  # B200: no run is at hand


@dataclass(frozen=True)
class Family:
    """`efficiency`: share of the peak that wide products reach, half of which is reached at a width of `narrow`;
    `attention`: what FlashAttention reaches; `passes`: how often what layers and logits keep goes through memory.
    `tensor`, `bubble`: the shares of the all-reduces in layers that nothing hides, and of the bubble that the schedule
    leaves. `overlaps`: all computing hides the communication of replicas."""

    efficiency: float
    narrow: float
    attention: float
    passes: float
    tensor: float = 1
    bubble: float = 1
    overlaps: bool = False


# Fitted by tests/samples/fit_families.py to every other row of published.csv; the others judge them.
_FAMILIES = {
    ("megatron", "A100"): Family(0.689, 0, 0.45, 2),
    ("megatron", "H100"): Family(0.608, 0, 0.45, 2, tensor=0.52, bubble=0.355, overlaps=True),
    ("fsdp", "A100"): Family(0.723, 117, 0.27, 1.53),
    ("fsdp", "H100"): Family(0.629, 503, 0.166, 1.42),
    ("plain", "A100"): Family(0.634, 0, 0.45, 2),
    ("plain", "H100"): Family(0.427, 0, 0.45, 1.34),
}
NAMES = {
    "megatron": "Megatron-LM",
    "fsdp": "PyTorch FSDP",
    "plain": "data parallel without splitting (llm.c, nanoGPT)",
}


def family_of(layout: Layout) -> str:
    """The kind of program that trains with a layout."""
    if SHARDED[layout.strategy] == 3:
        return "fsdp"
    return "megatron" if layout.splits_model else "plain"


def generation_of(gpu: GpuType) -> str:
    return "H100" if gpu.name.startswith(HOPPER) else "A100"


def find_family(layout: Layout, gpu: GpuType) -> Family:
    return _FAMILIES[family_of(layout), generation_of(gpu)]
