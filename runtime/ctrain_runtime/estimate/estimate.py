"""The estimate of a training: the values of the symbols, and of the formulas that use them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Optional

from ctrain_runtime.errors import UsageError
from ctrain_runtime.estimate.families import find_family
from ctrain_runtime.estimate.formulas import ITERATION, SIZES, STAGE, TRAINING, Formula, evaluate
from ctrain_runtime.estimate.hardware import Hardware
from ctrain_runtime.estimate.layout import SHARDED, Layout, check
from ctrain_runtime.estimate.model import Model
from ctrain_runtime.estimate.number_sizes import number_sizes

# Of a GPU's memory; the rest is CUDA's context, NCCL's buffers and fragmentation. A rule of thumb.
USABLE_MEMORY = 0.92
HOST_BANDWIDTH = 25e9  # bytes/s per GPU: PCIe 4.0 x16, and an eighth of the host's memory bandwidth. A rule of thumb.
LAUNCH = 5e-6  # s that a CPU takes to start a kernel from Python. A rule of thumb.
KERNELS, KERNELS_COMPILED = 70, 25  # of a layer, forward and backward, as counted in the packaged gpt; about
BACKWARD = 2 / 3  # of the computing time of an iteration
STEPS = 60  # of a bisection
LIVE = 1e9  # parameters: DeepSpeed's stage3_max_live_parameters and stage3_max_reuse_distance


@dataclass(frozen=True)
class Case:
    """What is estimated. `tokens`: of the training, 0 if unknown; `efficiency`: in place of the GPU type's."""

    model: Model
    hardware: Hardware
    layout: Layout
    tokens: float = 0
    efficiency: Optional[float] = None


@dataclass(frozen=True)
class Estimate:
    """The values of all symbols and formulas of a case, in SI units, and the meanings of the symbols."""

    case: Case
    values: Mapping[str, float]
    meanings: Mapping[str, str]

    @property
    def formulas(self) -> tuple[Formula, ...]:
        return (*SIZES, *STAGE, *ITERATION, *(TRAINING if self.case.tokens else ()))

    @property
    def fits(self) -> bool:
        return self.values["G"] <= capacity(self.case.hardware)


def capacity(hardware: Hardware) -> float:
    """The bytes of a GPU that a program can use."""
    return hardware.gpu.memory * 2**30 * USABLE_MEMORY


def make_estimate(case: Case) -> Estimate:
    """The estimate of a case. Raises UsageError for a layout that is not possible."""
    check(case.model, case.hardware, case.layout)
    symbols = {**_sizes(case), **_rates(case)}
    meanings = {name: meaning for name, (_, meaning) in symbols.items()}
    values = evaluate(SIZES, {name: value for name, (value, _) in symbols.items()})
    stages = [evaluate(STAGE, {**values, **stage}) for stage in _stages(case)]
    fullest = max(stages, key=lambda stage: stage["G"])
    after = (*ITERATION, *(TRAINING if case.tokens else ()))
    return Estimate(case, evaluate(after, fullest), {**meanings, **_OF_STAGES})


def calibrate(case: Case, gpus: int, tokens_per_second: float) -> tuple[float, float]:
    """The efficiency with which the estimate reaches the measured `tokens_per_second`, and the rate that was estimated.

    It is for `gpus` GPUs with as many micro batches per replica. Raises UsageError for an impossible layout, and for a
    rate out of reach.
    """
    layout, hardware = case.layout, case.hardware
    per_replica = layout.micro_batch * layout.micro_batches(hardware.count)
    layout = replace(layout, batch=max(1, layout.data_parallel(gpus)) * per_replica)
    run = replace(case, hardware=replace(hardware, count=gpus), layout=layout)

    def rate(efficiency: float) -> float:
        return make_estimate(replace(run, efficiency=efficiency)).values["tokens_per_second"]

    low, high = 0.0, 1.0
    if rate(high) < tokens_per_second:
        problem = f"{tokens_per_second:,.0f} tokens/s are more than {gpus} {hardware.gpu.name} reach with this layout"
        raise UsageError(problem, "Pass the model, the layout, the GPU type and the network that were measured")
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(middle) < tokens_per_second else (low, middle)
    return high, rate(_efficiencies(case)[0])


def _sizes(case: Case) -> dict[str, tuple[float, str]]:
    """Counts, sizes and switches, each with its meaning."""
    model, layout, gpus = case.model, case.layout, case.hardware.count
    shares, groups = _sharing(case)
    dp, steps, sharded = layout.data_parallel(gpus), layout.micro_batches(gpus), SHARDED[layout.strategy]
    gathered = sharded == 3 and layout.pp > 1  # once in an iteration: FSDP's stages keep what they have gathered
    zero3, family = (1 if gathered else steps) if sharded == 3 else 0, find_family(layout, case.hardware.gpu)
    selective = layout.recomputes_layers and layout.recompute != "full"
    plain, size = layout.attention == "plain", number_sizes(layout, gated=model.gated)
    # The last backward pass (DDP), each one (ZeRO 2), all (ZeRO 3: Zhao et al. 2023); a pipeline reduces at the end.
    overlap = (BACKWARD / steps, BACKWARD / steps, BACKWARD, 1)[sharded]
    return {
        "B": (layout.batch, "sequences per iteration"),
        "s": (model.sequence, "tokens per sequence"),
        "l": (model.layers, "layers"),
        "lp": (-(-model.layers // layout.pp), "layers of the largest stage"),
        "h": (model.hidden, "hidden size"),
        "a": (model.heads, "attention heads"),
        "ha": (model.heads * model.head_size, "width of all heads: h, unless they have another one"),
        "k": (model.key_value_heads, "heads with a key and a value of their own"),
        "i": (model.inner, "width between the two linear maps of a layer"),
        "j": (3 if model.gated else 2, "matrices of these maps: 3 with SwiGLU"),
        "nb": (model.small_parameters, "parameters of a layer's norms and biases"),
        "V": (model.vocabulary, "vocabulary"),
        "Ea": (_rows(model), "rows of the embeddings, and of an output with a table of its own"),
        "K": (case.tokens, "tokens of the training"),
        "n": (gpus, "GPUs"),
        "t": (layout.tp, "tensor-parallel size"),
        "cx": (layout.cp, "context-parallel size"),
        "sq": (model.sequence / layout.cp, "tokens of a sequence on a GPU"),
        "p": (layout.pp, "pipeline stages"),
        "ch": (layout.interleave, "parts of a stage (interleaved schedule)"),
        "d": (dp, "replicas (data-parallel size)"),
        "dg": (shares, "GPUs among which gradients are added up and a share is kept"),
        "dn": (groups, "groups of these, which then add up their shares (HSDP)"),
        "b": (layout.micro_batch, "sequences per micro batch"),
        "m": (steps, "micro batches per replica and iteration"),
        # Ranks of the packaged gpt each have all of them.
        "ty": (layout.tp if layout.is_of_megatron or layout.loss == "parallel" else 1, "ranks that share the logits"),
        "q": (layout.tp if layout.sequence_parallel else 1, "t with sequence parallelism, else 1"),
        "R": (layout.recomputes_layers, "1 if layers are recomputed"),
        "Rs": (selective, "1 if they keep every second product, and attention"),
        "Ra": (layout.recompute != "none" and not selective, "1 if attention is recomputed"),
        "u": (plain, "1 if attention scores go through memory"),
        "x": (plain and layout.recompute == "none", "1 if attention scores are kept"),
        "w": (size.activation, "bytes of an activation"),
        "wr": (size.residual, "bytes of an activation that layers add to"),
        "nw": (size.norms, "results of norms that products keep"),
        "wp": (size.parameter, "bytes of a parameter"),
        "wq": (size.gathered, "bytes of a gathered parameter"),
        "wc": (size.copy, "bytes of its copy (autocast)"),
        "wg": (size.gradient, "bytes of a gradient"),
        "wf": (size.flat, "bytes of a copy of it for the optimizer"),
        "wd": (size.double, "bytes of a gradient whose norm is computed"),
        "wl": (size.layer, "bytes of a gathered parameter while gradients are computed"),
        "wh": (not (layout.offload and layout.strategy == "zero3"), "1 if the GPU keeps its share of the parameters"),
        "wo": (size.host, "bytes per parameter that are beside these in the host's memory"),
        "wy": (size.logit, "bytes of a logit when the backward pass begins"),
        "rc": (size.rotated, "copies of attention's result"),
        "ag": (size.again, "results of the wide layer that it computes again"),
        "we": (size.end, "bytes of it when they are added up (FSDP)"),
        "kg": (_keeps_gradients(layout, steps), "1 if there are gradients when the backward pass begins"),
        "nr": (gathered, "1 if what is gathered is kept until the iteration ends"),
        "ql": (LIVE if layout.strategy == "zero3" else 0, "parameters that ZeRO 3 leaves gathered"),
        "wn": (size.network, "bytes of a gradient, or a parameter, that crosses the network"),
        "o": (size.state, "bytes of the optimizer's state per parameter"),
        "g": (not layout.offload, "1 if the optimizer's state is on the GPU"),
        "z1": (shares if sharded >= 1 else 1, "GPUs that share the optimizer's state"),
        "z2": (shares if sharded >= 2 and not gathered else 1, "GPUs that share the gradients"),
        "z3": (shares if sharded >= 3 else 1, "GPUs that share the parameters"),
        "r": ((2, 2, 1 + steps, 2 if gathered else 3 * steps)[sharded], "times that these cross the network"),
        "rn": (2 * steps, "times that shares do (HSDP)"),
        "c": (
            1 if family.overlaps else overlap if layout.pp == 1 else 0,
            "share of the computing that hides communication of replicas",
        ),
        "v": (zero3 * (2 if gathered else 3) * -(-model.layers // layout.pp), "with ZeRO 3, collectives of layers"),
        "vk": (zero3 * 2, "of these, those that nothing hides: the first and the last of a micro batch"),
    }


def _sharing(case: Case) -> tuple[int, int]:
    """The GPUs among which gradients are added up, and the groups of these: nodes, with HSDP."""
    hardware, layout = case.hardware, case.layout
    ranks = layout.data_parallel(hardware.count) * layout.cp
    shares = hardware.per_node // layout.tp if layout.strategy == "hsdp" else ranks
    return shares, ranks // shares


def _keeps_gradients(layout: Layout, steps: int) -> bool:
    """Those of earlier micro batches, or buffers that outlive a step: of DDP, of Megatron-LM, of a share (ZeRO 3)."""
    if steps > 1 or layout.strategy == "zero3":
        return True
    if layout.splits_model:
        return not layout.is_fsdp and layout.values_are_bf16
    return layout.strategy == "ddp"


def _efficiencies(case: Case) -> tuple[float, float]:
    """The shares of the peak that products reach, and attention; measured ones scale both."""
    family, layout = find_family(case.layout, case.hardware.gpu), case.layout
    products = family.efficiency / (1 + family.narrow * layout.tp / case.model.hidden)
    measured = case.efficiency or products
    return measured, (measured if layout.attention == "plain" else family.attention * measured / products)


def _rates(case: Case) -> dict[str, tuple[float, str]]:
    """The speeds of GPUs and links, each with its meaning. Ranks count as in Megatron-LM: tensor, data, pipeline."""
    hardware, layout, gpu = case.hardware, case.layout, case.hardware.gpu
    tp, (shares, groups) = layout.tp, _sharing(case)
    efficiency, attention, family = *_efficiencies(case), find_family(layout, gpu)
    on_a_node = min(shares, max(1, hardware.per_node // tp))
    senders = min(tp * shares, hardware.per_node)  # the ranks of a node whose next stage is on another one
    to_next = hardware.network / senders if hardware.nodes > 1 else gpu.link
    return {
        "X": (_peak(case) * 1e12, "peak of a GPU, FLOP/s"),
        "e": (efficiency, "share of the peak that matrix products reach"),
        "ea": (attention, "share of the peak that attention reaches"),
        "xt": (family.tensor, "share of the all-reduces in layers that nothing hides"),
        "xn": (family.between, "share of the reductions between nodes that nothing hides (HSDP)"),
        "xb": (family.bubble if layout.interleave == 1 else 1, "share of the bubble that the schedule leaves"),
        "xp": (not (family.overlaps and layout.interleave > 1), "1 if nothing hides what stages send"),
        "cp": (family.passes, "passes through memory of what is kept"),
        "cy": (family.logits, "of the logits, in place of 3"),
        "tl": (LAUNCH, "time to start a kernel, s"),
        "kl": (KERNELS_COMPILED if layout.compiled else KERNELS, "kernels of a layer"),
        "W": (gpu.bandwidth * 1e9, "memory bandwidth of a GPU, B/s"),
        "H": (HOST_BANDWIDTH, "bandwidth of the host's memory per GPU, B/s"),
        "U": (gpu.watts, "power limit of a GPU, W"),
        "Bt": (hardware.group_bandwidth(tp, min(tp, hardware.per_node)), "bandwidth in a tensor-parallel group, B/s"),
        "Bp": (math.inf if layout.pp == 1 else to_next * 1e9, "bandwidth of a GPU to the next stage, B/s"),
        "Bc": (_ring_bandwidth(case), "bandwidth of a GPU to the next one of a sequence, B/s"),
        "Bd": (hardware.group_bandwidth(shares, on_a_node), "bandwidth among replicas, B/s"),
        "Bn": (hardware.group_bandwidth(groups, 1), "bandwidth among groups of these (HSDP), B/s"),
        "Ld": (hardware.ring_latency(shares, on_a_node), "latency of a collective of replicas, s"),
    }


def _peak(case: Case) -> float:
    """TFLOP/s of products."""
    gpu, precision = case.hardware.gpu, case.layout.precision
    return gpu.fp32 if precision == "fp32" else gpu.bf16 * (2 if precision == "fp8" else 1)


def _ring_bandwidth(case: Case) -> float:
    """Of keys and values, which go around the GPUs of a sequence; those of a tensor-parallel group come first."""
    hardware, layout = case.hardware, case.layout
    if layout.cp == 1:
        return math.inf
    on_a_node = layout.tp * layout.cp <= hardware.per_node or hardware.nodes == 1
    return (hardware.gpu.link if on_a_node else hardware.network / hardware.per_node) * 1e9


def _rows(model: Model) -> int:
    """Rows of the tables of words (two, unless the output has that of the input) and of positions."""
    positions = model.sequence if model.learned_positions else 0
    return model.vocabulary * (1 if model.tied else 2) + positions


_OF_STAGES = {
    "E": "rows of the embeddings on the stage",
    "y": "1 if the stage computes the output",
    "f": "micro batches whose activations the stage keeps",
    "hs": "of each micro batch, inputs, outputs and gradients of the stage that are kept",
}


def _stages(case: Case) -> list[dict[str, float]]:
    """The symbols that differ between the first, the last and other stages; these are never the fullest if they keep
    nothing of what they send and receive. The rule for f: Narayanan et al., section 2.2."""
    layout, rows = case.layout, case.model.vocabulary
    steps, embeddings = float(layout.micro_batches(case.hardware.count)), _rows(replace(case.model, tied=True))
    if layout.pp == 1:
        return [{"E": _rows(case.model), "y": 1, "f": 1, "hs": 0}]
    # The parts of an interleaved stage keep more: Korthikanti et al., section 4.2.3.
    most = layout.pp + (layout.pp - 1) / layout.interleave * (layout.interleave > 1)
    first, last = (steps, steps) if layout.schedule == "gpipe" else (min(steps, most), 1.0)
    kept, second = layout.hands_over, first if layout.schedule == "gpipe" else min(steps, most - 1)
    between = [{"E": 0, "y": 0, "f": second, "hs": 3}] if kept and layout.pp > 2 else []
    ends = [{"E": embeddings, "y": 0, "f": first, "hs": 2 * kept}, {"E": rows, "y": 1, "f": last, "hs": kept}]
    return [*ends, *between]
