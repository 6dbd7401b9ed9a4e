"""How many bytes a number takes, of activations, parameters, gradients and optimizers, by who keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from ctrain_runtime.estimate.layout import Layout


@dataclass(frozen=True)
class NumberSizes:
    """`activation`: what products read and write; `residual`: what layers add to; `norms`: copies of the norms' results
    that products keep, two of them in a layer. `copy`: beside each parameter of a matrix. `network`: of a gradient or a
    parameter that crosses it. `state`: of the optimizer, for each parameter; `flat`: of the gradients that it reads, if
    they are copied; `double`: of the matrix whose norm is computed. `layer`: while gradients are
    computed, of a parameter of that layer (FSDP), or of all that ZeRO 3 leaves gathered, as measured; `end`: of a layer
    of FSDP that has its gradients, with the next one. `logit`: of one, when the backward pass begins; `again`: results
    of the wide layer that it computes again; `rotated`: copies of attention's result, whose order is that of rotated
    queries. `host`: of each parameter, what is in the host's memory beside state and `flat`, if these are, as
    measured."""

    activation: int
    residual: int
    norms: float
    parameter: int
    gathered: int
    copy: int
    gradient: int
    network: int
    state: int
    flat: int = 0
    double: int = 0
    layer: int = 0
    end: int = 0
    logit: int = 12
    again: float = 0
    rotated: float = 0
    host: int = 0


PLAIN, FUSED = 12, 4  # bytes of a logit: its logarithm of the softmax and two gradients; the logit and its gradient


def number_sizes(layout: Layout, *, gated: bool) -> NumberSizes:
    """Those of the program that trains with this strategy and precision. Sources: docs/estimate-formulas.md."""
    deepspeed, fsdp, zero3 = layout.strategy.startswith("zero"), layout.is_fsdp, layout.strategy == "zero3"
    rotated, in_fp32, logit = int(gated), 8 + 4 * zero3, FUSED if layout.loss == "fused" else PLAIN
    if layout.precision == "fp32":  # DeepSpeed updates a copy of the parameters
        own = (12, 0, 8, 2, 0) if deepspeed else (8, 0, 0, 4, 16 if fsdp else 0)
        return NumberSizes(4, 4, 2, 4, 4, 0, 4, 4, *own, logit, rotated=rotated, host=in_fp32)
    if layout.precision == "autocast":  # query, key and value, and both maps of SwiGLU, cast the same number each
        norms, state = 5 if gated else 4, 12 if deepspeed else 8
        return NumberSizes(2, 4, norms, 4, 4, 2, 4, 4, state, logit=logit, rotated=rotated, host=in_fp32)
    if fsdp:  # a shard in fp32, with its gradient; the rest of the layer in bf16: 2 + 2 gathered, gradients in 2 and 4
        return NumberSizes(2, 2, 2, 4, 2, 0, 4, 2, 8, layer=2, end=10, logit=logit, rotated=rotated)
    if layout.compiled:  # llm.c makes the gradients of logits in their place
        return NumberSizes(2, 2, 2, 2, 2, 0, 2, 2, 12, logit=2)
    if layout.is_of_megatron:
        return _of_megatron(layout.precision == "fp8", gated)
    if deepspeed:  # the state's share of gradients is in fp32, too
        return NumberSizes(2, 2, 2, 2, 2, 0, 2, 2, 12, 4, 8, 2, logit=logit, rotated=rotated, host=2 + 2 * zero3)
    return NumberSizes(2, 2, 2, 2, 2, 0, 4, 4, 12, logit=logit, rotated=rotated)


def _of_megatron(fp8: bool, gated: bool) -> NumberSizes:
    """The softmax of a logit becomes its gradient in place, in fp32, and is cast to bf16. SwiGLU is one function, which
    keeps its arguments.

    In FP8, NVIDIA's recipes have matrices in FP8 alone, twice, since one is transposed, and add gradients up in bf16.
    What products read is kept in FP8: results of norms and of the wide layer's function, and attention's once more.
    """
    if fp8:
        return NumberSizes(2, 2, 1, 2, 2, 0, 2, 2, 12, logit=6, again=0.5 + gated, rotated=0.5)
    return NumberSizes(2, 2, 2, 2, 2, 0, 4, 4, 12, logit=6, again=int(gated))
