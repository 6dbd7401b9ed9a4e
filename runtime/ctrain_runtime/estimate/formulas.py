"""The formulas of an estimate, in the order in which they are computed; docs/estimate-formulas.md derives them.

They are data, so that `--explain` prints exactly what is computed. The symbols are those of estimate.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True)
class Formula:
    """`text` is a Python expression of symbols and of formulas above it; `unit` is SI, `source` a paper's reference."""

    symbol: str
    meaning: str
    unit: str
    text: str
    source: str

    @functools.cached_property
    def code(self) -> CodeType:
        return compile(self.text, self.symbol, "eval")

    @property
    def names(self) -> list[str]:
        """The symbols and formulas that it uses."""
        return [name for name in self.code.co_names if name not in ("min", "max")]


def _sum(symbol: str, meaning: str, unit: str, parts: Sequence[Formula]) -> Formula:
    return Formula(symbol, meaning, unit, " + ".join(part.symbol for part in parts), "definition")


PARAMETERS = "Narayanan et al. 2021, eq. 2"
FLOPS = "Narayanan et al. 2021, eq. 3: 96 B s l h^2 (1 + s/6h + V/16lh) if all is recomputed"
ZERO = "Rajbhandari et al. 2020 (ZeRO), sections 3 and 5"
KEPT = "Korthikanti et al. 2022, sections 4 and 5"
MEASURED = "measured: tests/samples/memory"
RING = "Shoeybi et al. 2019, section 3; of a ring: Patarasuk and Yuan 2009"
REDUCTION = "Patarasuk and Yuan 2009; Rajbhandari et al. 2020, section 7; Li et al. 2020 (DDP); Zhao et al. 2023 (FSDP)"
# What computing does not hide, but at least what comes before it and after it.
_REDUCED = "r*wn*P*(dg - 1)/dg/Bd + v*Ld - c*(compute + attention + elementwise + launch)"
_DATA = f"max({_REDUCED}, vk*(wn*P/lp*(dg - 1)/dg/Bd + Ld)) + xn*rn*wn*P/dg*(dn - 1)/dn/Bn"
_AROUND = "max(0, 6*(cx - 1)*m*lp*w*sq*b*ha*k/a/t/Bc - attention)"  # both forward, and back with their gradients
# Inputs and results of norms, masks; query, key, value and result of attention, and the wide layer.
_LAYER = "sq*b*((2*wr + nw*w + u*w)*h/q + w*(2*ha*(1 + k/a) + 2*(j - 1)*i)/t) + u*S"
# The input; the wide layer's result, which ranks add up, and both sums; query, value, attention's result, a wide one.
_KEPT_OF_RECOMPUTED = "sq*b*(wr*h/q + Rs*w*(h + (q > 1)*2*h/q + (ha*(2 + k/a) + i)/t))"
# Those that are there when the backward pass begins; or what exceeds the activations that go while others come.
_GRADIENTS = "max(kg*wg*P/z2, max(wg*P/z2, (wg + wf)*P/z1) + wd*O - activations - output)"
# What the last layer needs besides, or one that is computed again; or FSDP, to add up the gradients of the next one.
_OUTPUT = "max(max(y*Q, Z) - R*A, (z3 > 1)*(we*(Lm + nb)/t + R*I))"
_WORK = "compute + attention + elementwise + tensor + context + pipeline"  # of a micro batch
BUBBLE = "Narayanan et al. 2021, sections 2.2 and 2.3"
FLASH = "Dao 2023 (FlashAttention-2): half of them where tokens see only what is before; ea is fitted"
LAUNCHED = "counted in examples/gpt; what the GPU's work hides is not counted"
ROOFLINE = "Williams et al. 2009 (Roofline)"
PALM = "Chowdhery et al. 2022 (PaLM), appendix B"

SIZES = (
    Formula("Lm", "parameters of a layer's matrices", "", "h*ha*(2 + 2*k/a) + j*h*i", PARAMETERS),
    Formula("N", "parameters", "", "l*(Lm + nb) + Ea*h", PARAMETERS),
    Formula("M", "model's operations per iteration", "FLOP", "6*B*s*(l*(Lm + 2*s*ha) + h*V)", PALM),
    Formula("Fa", "of attention, of these and recomputed ones", "FLOP", "(3 + Ra)*4*B*l*s**2*ha", FLOPS),
    Formula("Lr", "of these, recomputed", "", "R*Lm - Rs*(h*ha*(1 + k/a) + (j - 1)*h*i)", FLOPS),
    Formula("F", "and recomputed ones", "FLOP", "M + 2*B*s*l*(Lr + Ra*2*s*ha)", FLOPS),
)
# Of a GPU of the fullest stage.
MEMORY = (
    Formula("parameters", "", "B", "wh*wp*P/z3 + wc*C + (z3 > 1)*wq*min(P, max(ql, E*h/t, nr*P))", ZERO),
    Formula("gradients", "", "B", _GRADIENTS, MEASURED),
    Formula("optimizer", "Adam's state", "B", "g*o*P/z1", ZERO),
    Formula("activations", "", "B", "f*lp*((1 - R)*A + R*Ak) + R*A + (u - x)*S", KEPT),
    Formula("output", "logits; or what a layer's gradients need besides", "B", _OUTPUT, MEASURED),
    Formula("stages", "what they send and receive", "B", "m*(hs*wr*sq*b*h/q + (hs == 1)*w*sq*b*V/ty)", MEASURED),
)
STAGE = (
    Formula("S", "attention scores of a layer", "B", "5*w/2*a*s**2*b/t", "Korthikanti et al. 2022"),
    Formula("P", "parameters", "", "(lp*(Lm + nb) + E*h)/t", PARAMETERS),
    Formula("C", "of these, with a copy in bf16 (autocast)", "", "((lp*(1 - R) + R)*Lm + y*V*h)/t", MEASURED),
    Formula("D", "activations of a layer", "B", _LAYER, KEPT),
    Formula(
        "A", "of these, kept", "B", "D - (u - x)*S + w*sq*b*(rc*ha - ag*i)/t", "Korthikanti et al. 2022, section 5"
    ),
    Formula("Ak", "or where it is recomputed", "B", _KEPT_OF_RECOMPUTED, f"{KEPT}; torchtitan"),
    Formula("Y", "logits, and the input of their product", "B", "sq*b*(12*V/ty + (wr + w)*h/q)", MEASURED),
    Formula("Q", "of these, kept", "B", "Y - (12 - wy)*sq*b*V/ty", MEASURED),
    Formula("I", "of a layer's, of its input and its wide layer", "B", "sq*b*(wr*h/q + 2*w*(j - 1)*i/t)", MEASURED),
    Formula("Z", "gradients within the last layer", "B", "I + (z3 > 1)*wl*min(P, max(ql, (Lm + nb)/t))", MEASURED),
    Formula("O", "the largest matrix that a GPU has of", "", "min(P/z1, max(i*h, V*h))", MEASURED),
    *MEMORY[3:],  # the gradients of a step come while its activations go
    *MEMORY[:3],
    _sum("G", "memory per GPU", "B", MEMORY),
    Formula("host", "in the host's memory, per GPU", "B", "(1 - g)*(o + wf + wo)*P/z1", MEASURED),
)
TIME = (
    Formula(
        "compute", "matrix products", "s", "(F - Fa)/(n*X*e)*lp*p/l", "Narayanan et al. 2021, section 5.1; e is fitted"
    ),
    Formula("attention", "scores of attention", "s", "Fa*(1 + u)/2/(n*X*ea)*lp*p/l", FLASH),
    Formula("elementwise", "all else; memory-bound", "s", "m*(lp*((3 + R)*D + (Ra - R)*u*S) + cy*Y)*cp/W", ROOFLINE),
    Formula("tensor", "all-reduces in layers", "s", "xt*m*lp*(4 + 2*R - Rs)*2*(t - 1)/t*w*sq*b*h/Bt", RING),
    Formula("context", "keys and values within sequences", "s", _AROUND, "Liu et al. 2023 (Ring Attention)"),
    Formula("pipeline", "between stages", "s", "xp*2*m*ch*w*sq*b*h/q/Bp", "Narayanan et al. 2021, section 3.2"),
    Formula("launch", "kernels that the CPU starts", "s", f"max(0, tl*kl*(1 + R/3)*m*lp - ({_WORK}))", LAUNCHED),
    Formula("bubble", "idle stages", "s", f"xb*(p - 1)/m/ch*({_WORK})", BUBBLE),
    Formula("data", "between replicas", "s", _DATA, REDUCTION),
    Formula("update", "of the parameters", "s", "P/z1*2*(o + wf + wg)/(W if g else H)", ROOFLINE),
)
ITERATION = (
    *TIME,
    _sum("T", "time of an iteration", "s", TIME),
    Formula("mfu", "model FLOPs utilization", "", "M/(n*X*T)", PALM),
    Formula("hfu", "hardware FLOPs utilization", "", "F/(n*X*T)", "Korthikanti et al. 2022, section 6.3"),
    Formula("tokens_per_second", "", "1/s", "B*s/T", "definition"),
)
TRAINING = (
    Formula("seconds", "time of the training", "s", "K/(B*s)*T", "Narayanan et al. 2021, section 5.1, exact"),
    Formula("gpu_hours", "", "h", "n*seconds/3600", "definition"),
    Formula("energy", "of the GPUs at their power limit", "J", "n*U*seconds", "definition"),
)
_FUNCTIONS = {"__builtins__": {"min": min, "max": max}}


def evaluate(formulas: Sequence[Formula], values: Mapping[str, float]) -> dict[str, float]:
    """`values`, and with them the value of each formula."""
    known = dict(values)
    for formula in formulas:
        known[formula.symbol] = eval(formula.code, _FUNCTIONS, known)  # noqa: S307  # constants of this file
    return known
