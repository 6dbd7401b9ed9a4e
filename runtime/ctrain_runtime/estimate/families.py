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
    leaves. `logits`: passes of the logits; 3, or 6 of their 12 bytes where one kernel makes their gradients in place.
    `overlaps`: all computing hides the communication of replicas."""

    efficiency: float
    narrow: float
    attention: float
    passes: float
    tensor: float = 1
    bubble: float = 1
    logits: float = 3
    overlaps: bool = False


# Fitted by tests/samples/fit_families.py to every other row of published.csv; the others judge them.
_FAMILIES = {
    ("megatron", "A100"): Family(0.671, 0, 0.45, 2),
    ("megatron", "H100"): Family(0.525, 0, 0.45, 2, tensor=0.056, bubble=0.185, overlaps=True),
    ("fsdp", "A100"): Family(0.69, 227, 0.269, 1),
    ("fsdp", "H100"): Family(0.638, 0, 0.151, 2.79),
    ("ddp", "A100"): Family(0.659, 0, 0.45, 1.5, logits=1),
    ("ddp", "H100"): Family(0.557, 0, 0.45, 1.5, logits=1),
    ("plain", "A100"): Family(0.726, 0, 0.45, 1.5, logits=0.5),
    ("plain", "H100"): Family(0.402, 0, 0.45, 1.5, logits=0.5),
}
SELDOM = ("ddp", "plain")  # of which few runs are published
NAMES = {
    "megatron": "Megatron-LM",
    "fsdp": "PyTorch FSDP",
    "ddp": "PyTorch DDP",
    "plain": "programs in bf16 that split no layers (llm.c)",
}


def family_of(layout: Layout) -> str:
    """The kind of program that trains with a layout."""
    if SHARDED[layout.strategy] == 3:
        return "fsdp"
    if layout.splits_model:
        return "megatron"
    if layout.precision != "bf16":
        return "ddp"
    return "plain" if layout.attention == "flash" else "megatron"


def generation_of(gpu: GpuType) -> str:
    """Of the published runs; other GPUs are estimated as the A100."""
    return "H100" if gpu.name.startswith(HOPPER) else "V100" if gpu.name.startswith("V100") else "A100"


def find_family(layout: Layout, gpu: GpuType) -> Family:
    kind, generation = family_of(layout), generation_of(gpu)
    return _FAMILIES.get((kind, generation)) or _FAMILIES[kind, "A100"]
