"""How a model is spread over GPUs, and which layouts are possible."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ctrain_runtime.base.text import pluralize
from ctrain_runtime.errors import UsageError
from ctrain_runtime.estimate.hardware import Hardware
from ctrain_runtime.estimate.model import Model

Strategy = Literal["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"]
Schedule = Literal["1f1b", "gpipe"]
Recompute = Literal["none", "selective", "full"]
Attention = Literal["flash", "plain"]
Loss = Literal["plain", "fused", "parallel"]
Precision = Literal["bf16", "fp8", "autocast", "fp32"]

# Of how many parts of the state (optimizer, gradients, parameters) a data-parallel rank keeps only its share.
SHARDED = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
_NO_PIPELINE = ("zero2", "zero3", "hsdp")  # DeepSpeed's pipeline engine refuses the first; the last has no runs


@dataclass(frozen=True)
class Layout:
    """`strategy` is that of the data-parallel ranks: hsdp is fsdp within a node, whose nodes are replicas. `batch` is
    global, `micro_batch` that of a GPU, in sequences, each of which `cp` GPUs share. A stage has `interleave` parts of
    the layers, which are not neighbours. `compiled`: as a whole, as llm.c. `loss`: fused makes gradients
    of logits from these in one kernel; of parallel, tensor-parallel ranks share them."""

    batch: int
    micro_batch: int = 1
    strategy: Strategy = "ddp"
    offload: bool = False
    tp: int = 1
    pp: int = 1
    cp: int = 1
    schedule: Schedule = "1f1b"
    interleave: int = 1
    recompute: Recompute = "none"
    attention: Attention = "flash"
    loss: Loss = "plain"
    sequence_parallel: bool = False
    precision: Precision = "bf16"
    compiled: bool = False

    @property
    def can_be_compiled(self) -> bool:
        """Whether published runs tell compiled programs from others."""
        unsplit = not self.splits_model and SHARDED[self.strategy] < 3
        return unsplit and self.precision == "bf16" and self.attention == "flash"

    @property
    def is_flash(self) -> bool:
        return self.attention == "flash"

    @property
    def recomputes_layers(self) -> bool:
        """All that they keep, or but for some of their products: else only attention, if at all."""
        return self.recompute == "full" or (self.recompute == "selective" and self.is_flash)

    @property
    def hands_over(self) -> bool:
        """Whether stages keep what they send and receive until the iteration ends: those of torch do, Megatron-LM's
        do not."""
        return self.pp > 1 and (self.is_fsdp or not self.values_are_bf16)

    @property
    def values_are_bf16(self) -> bool:
        """Also where products are in FP8."""
        return self.precision in ("bf16", "fp8")

    @property
    def is_fsdp(self) -> bool:
        """Of torch."""
        return self.strategy in ("fsdp", "hsdp")

    @property
    def splits_model(self) -> bool:
        """Or its sequences."""
        return self.tp > 1 or self.pp > 1 or self.cp > 1

    @property
    def is_of_megatron(self) -> bool:
        """Megatron-LM's, but where it splits nothing: that is told from DeepSpeed by FP8 alone."""
        return self.precision == "fp8" or (self.splits_model and self.precision == "bf16" and not self.is_fsdp)

    def data_parallel(self, gpus: int) -> int:
        return gpus // (self.tp * self.pp * self.cp)

    def micro_batches(self, gpus: int) -> int:
        """Micro batches per replica and iteration: the steps of gradient accumulation."""
        return self.batch // (self.data_parallel(gpus) * self.micro_batch)

    def with_fitting_micro_batch(self, gpus: int) -> Layout:
        """With the largest micro batch up to its own that divides a replica's share, and leaves one for each stage."""
        share = max(1, self.batch // max(1, self.data_parallel(gpus)))
        most = min(self.micro_batch, max(1, share // self.pp))
        return replace(self, micro_batch=max(size for size in divisors(share) if size <= most))

    def options(self) -> str:
        """The options of `ctrain estimate` that differ from the defaults, apart from the batch."""
        default = Layout(self.batch)
        words = []
        for name in (
            "strategy",
            "tp",
            "pp",
            "cp",
            "interleave",
            "micro_batch",
            "recompute",
            "loss",
            "offload",
            "sequence_parallel",
            "compiled",
        ):
            value = getattr(self, name)
            if value != getattr(default, name):
                words.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}"))
        return " ".join(words) or "--strategy ddp"


def check(model: Model, hardware: Hardware, layout: Layout) -> None:
    """Raise UsageError for a layout that does not divide, with the nearest that does."""
    _check_heads(model)
    gpus, tp, pp = hardware.count, layout.tp, layout.pp
    if model.heads % tp or gpus % tp:
        what = f"{model.heads} heads" if model.heads % tp else pluralize(gpus, "GPU")
        near = _divisors("--tp", tp, [model.heads, gpus])
        raise UsageError(f"{what} cannot be split among tp {tp}", f"Nearest: {near}")
    if model.layers < pp or gpus // tp % pp:
        what = f"{model.layers} layers" if model.layers < pp else f"{pluralize(gpus, 'GPU')} with tp {tp}"
        near = _near("--pp", pp, [stages for stages in divisors(gpus // tp) if stages <= model.layers])
        raise UsageError(f"{what} cannot be split into pp {pp} stages", f"Nearest: {near}")
    if layout.cp > 1:
        _check_context_parallel(model, hardware, layout)
    step = layout.data_parallel(gpus) * layout.micro_batch
    if layout.batch % step:
        problem = f"batch {layout.batch} is not a multiple of dp {layout.data_parallel(gpus)}"
        nearest = f"Nearest: {_multiples('--batch', layout.batch, step)}"
        raise UsageError(f"{problem} x micro batch {layout.micro_batch} = {step}", nearest)
    _check_combination(hardware, layout)
    _check_selective(model, layout)
    _check_loss(layout)
    if layout.interleave > 1:
        _check_interleaved(model, layout, layout.micro_batches(gpus))


def _check_heads(model: Model) -> None:
    if model.hidden % model.heads and not model.head_width:
        near = _divisors("--heads", model.heads, [model.hidden])
        raise UsageError(f"hidden size {model.hidden} is not a multiple of {model.heads} heads", f"Nearest: {near}")
    if model.heads % model.key_value_heads:
        near = _divisors("--kv-heads", model.key_value_heads, [model.heads])
        raise UsageError(
            f"{model.heads} heads are not a multiple of {model.key_value_heads} of keys and values", f"Nearest: {near}"
        )


def _check_combination(hardware: Hardware, layout: Layout) -> None:
    if layout.pp > 1 and layout.strategy in _NO_PIPELINE:
        hint = "Pass --strategy zero1 or fsdp, or --pp 1"
        raise UsageError(f"{layout.strategy} cannot be combined with a pipeline (pp {layout.pp})", hint)
    if layout.strategy == "hsdp":
        _check_hsdp(hardware, layout)
    if layout.precision == "fp8" and not (hardware.gpu.has_fp8 and SHARDED[layout.strategy] < 2 and layout.is_flash):
        problem = "FP8 is estimated of Megatron-LM on H100, H200 and GH200: ddp or zero1, with FlashAttention"
        raise UsageError(problem, "Pass --precision bf16: no other published runs judge it")
    if layout.compiled and not layout.can_be_compiled:
        problem = "compiled programs are told from others only in bf16, with FlashAttention, where no layers are split"
        raise UsageError(problem, "Omit --compiled")


def _check_selective(model: Model, layout: Layout) -> None:
    """That of plain attention is of its scores; that of FSDP is torchtitan's, which has Llamas alone."""
    if layout.recompute != "selective" or not layout.is_flash or (layout.is_fsdp and model.gated):
        return
    problem = "FlashAttention keeps no scores that could be recomputed"
    raise UsageError(problem, "Pass --recompute none or full; selective is estimated of FSDP with SwiGLU, too")


def _check_loss(layout: Layout) -> None:
    if layout.loss == "plain":
        return
    if layout.compiled or layout.is_of_megatron:
        program = "llm.c" if layout.compiled else "Megatron-LM"
        raise UsageError(f"--loss {layout.loss}: {program} has a loss of its own, which is estimated", "Omit --loss")
    if layout.loss == "parallel" and not (layout.is_fsdp and layout.tp > 1):
        raise UsageError(
            "--loss parallel shares logits among the ranks of --tp, with FSDP",
            "Pass --strategy fsdp and --tp, or --loss fused",
        )


def _check_context_parallel(model: Model, hardware: Hardware, layout: Layout) -> None:
    groups, cp = hardware.count // (layout.tp * layout.pp), layout.cp
    if model.sequence % cp or groups % cp:
        what = f"sequences of {model.sequence}" if model.sequence % cp else f"{groups} GPUs of each part of the model"
        near = _divisors("--cp", cp, [groups, model.sequence])
        raise UsageError(f"{what} cannot be split among cp {cp}", f"Nearest: {near}")
    if SHARDED[layout.strategy] > 1 or not layout.values_are_bf16 or layout.attention == "plain":
        problem = "context parallelism is estimated of Megatron-LM: ddp or zero1 in bf16, with FlashAttention"
        raise UsageError(problem, "Pass --strategy zero1, or omit --cp: no other published runs judge it")


def _check_hsdp(hardware: Hardware, layout: Layout) -> None:
    if hardware.count <= hardware.per_node:
        raise UsageError("on one node, hsdp is fsdp", "Pass --strategy fsdp, or more nodes")
    if hardware.count % hardware.per_node or hardware.per_node % layout.tp:
        full = f"{hardware.count} GPUs with tp {layout.tp} do not fill nodes of {hardware.per_node}"
        raise UsageError(f"{full}, within which hsdp shares", "Pass full nodes, and a --tp that divides their GPUs")


def _check_interleaved(model: Model, layout: Layout, micro_batches: int) -> None:
    parts = layout.pp * layout.interleave
    if layout.pp == 1 or layout.schedule != "1f1b":
        raise UsageError("--interleave is of a pipeline with the schedule 1f1b", "Pass --pp 2 or more, or omit it")
    if model.layers < parts:
        most = model.layers // layout.pp
        raise UsageError(f"{model.layers} layers cannot be split into {parts} parts", f"Nearest: --interleave {most}")
    if micro_batches % layout.pp:
        problem = f"{micro_batches} micro batches are not a multiple of pp {layout.pp}, as --interleave needs"
        near = _multiples("--batch", layout.batch, layout.batch // micro_batches * layout.pp)
        raise UsageError(problem, f"Nearest: {near}")


def divisors(number: int) -> list[int]:
    small = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return sorted({*small, *(number // part for part in small)})


def _multiples(option: str, number: int, of: int) -> str:
    below = number // of * of
    return " or ".join(f"{option} {value}" for value in (below, below + of) if value)


def _divisors(option: str, number: int, of: Iterable[int]) -> str:
    """The nearest divisors of all of `of` below and above `number`."""
    first, *others = of
    return _near(option, number, [part for part in divisors(first) if all(other % part == 0 for other in others)])


def _near(option: str, number: int, possible: Sequence[int]) -> str:
    below, above = [part for part in possible if part < number], [part for part in possible if part > number]
    return " or ".join(f"{option} {value}" for value in (*below[-1:], *above[:1]))
