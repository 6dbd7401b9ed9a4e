"""How fast programs compute: a few numbers per kind of program and generation of GPUs, fitted to published runs."""

from __future__ import annotations

from dataclasses import dataclass

from ctrain_runtime.estimate.hardware import GpuType
from ctrain_runtime.estimate.layout import SHARDED, Layout

HOPPER = ("H100", "H200", "GH200", "B200")  # estimated by the numbers of the H100
OTHER = "other GPUs"
_CARDS = ("PCIe", "NVL")  # their limits of power are lower, which products feel


@dataclass(frozen=True)
class Family:
    """`efficiency`: share of the peak that wide products reach, half of which is reached at a width of `narrow`;
    `attention`: what FlashAttention reaches; `passes`: how often what layers and logits keep goes through memory.
    `tensor`, `bubble`: the shares of the all-reduces in layers that nothing hides, and of the bubble that the schedule
    leaves. `between`: the share of HSDP's reductions between nodes that nothing hides. `logits`: passes of the logits;
    3, or 6 of their 12 bytes where one kernel makes their gradients in place. `overlaps`: all computing hides the
    communication of replicas."""

    efficiency: float
    narrow: float
    attention: float
    passes: float
    tensor: float = 1
    bubble: float = 1
    between: float = 1
    logits: float = 3
    overlaps: bool = False


# Fitted by tests/samples/fit_families.py to every other row of published.csv; the others judge them.
_FAMILIES = {
    ("megatron", "A100"): Family(0.671, 0, 0.45, 2),
    ("megatron", "H100"): Family(0.576, 0, 0.45, 2, tensor=0.687, bubble=0.339, overlaps=True),
    ("fp8", "H100"): Family(0.478, 0, 0.225, 2, tensor=0.687, bubble=0.339, overlaps=True),
    ("fsdp", "A100"): Family(0.69, 195, 0.269, 1.13, between=0.374),
    ("fsdp", "H100"): Family(0.6, 0, 0.149, 2.48, between=0.697),
    ("ddp", "A100"): Family(0.659, 0, 0.45, 1.5, logits=1),
    ("ddp", "H100"): Family(0.588, 0, 0.45, 1.5, logits=1),
    ("eager", "A100"): Family(0.628, 684, 0.45, 1.5),
    ("eager", "H100"): Family(0.58, 684, 0.45, 1.5),
    ("compiled", "A100"): Family(0.726, 0, 0.45, 1.5, logits=0.5),
    ("compiled", "H100"): Family(0.561, 0, 0.45, 1.5, logits=0.5),
}
# Of which few runs are published, and why their errors are larger.
SELDOM = {
    "ddp": "GPT-2 takes up to 1.9 times as long with torch of 2023 as with 2.8",
    "eager": "few models, nearly all of GPT-NeoX",
    "compiled": "few models, all of llm.c",
}
NAMES = {
    "megatron": "Megatron-LM",
    "fp8": "Megatron-LM in FP8",
    "fsdp": "PyTorch FSDP",
    "ddp": "PyTorch DDP",
    "eager": "DeepSpeed, GPT-NeoX and others in bf16 that split no layers",
    "compiled": "compiled programs in bf16 that split no layers",
}


def family_of(layout: Layout) -> str:
    """The kind of program that trains with a layout."""
    if layout.precision == "fp8":
        return "fp8"
    if SHARDED[layout.strategy] == 3:
        return "fsdp"
    if layout.splits_model:
        return "megatron"
    if layout.precision != "bf16":
        return "ddp"
    if layout.attention == "plain":
        return "megatron"
    return "compiled" if layout.compiled else "eager"


def generation_of(gpu: GpuType) -> str:
    """Of the published runs."""
    if any(form in gpu.name for form in _CARDS):
        return OTHER
    known = {**dict.fromkeys(HOPPER[:3], "H100"), "A100": "A100", "V100": "V100"}
    return next((generation for name, generation in known.items() if gpu.name.startswith(name)), OTHER)


def is_fitted(kind: str, generation: str) -> bool:
    """Whether a family has numbers for this generation; else it has those of another."""
    return (kind, generation) in _FAMILIES


def fitted_generation(gpu: GpuType) -> str:
    """Whose numbers are used for a GPU."""
    return "H100" if gpu.name.startswith(HOPPER) else "A100"


def find_family(layout: Layout, gpu: GpuType) -> Family:
    return _FAMILIES[family_of(layout), fitted_generation(gpu)]
