"""The formulas of an estimate, in the order in which they are computed; docs/estimate.md derives them.

They are data, so that `--explain` prints exactly what is computed. The symbols are those of estimate.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Formula:
    """`text` is a Python expression of symbols and of formulas above it; `unit` is SI, `source` a paper's reference."""

    symbol: str
    meaning: str
    unit: str
    text: str
    source: str

    @property
    def names(self) -> list[str]:
        """The symbols and formulas that it uses."""
        return [name for name in _CODE[self].co_names if name not in ("min", "max")]


def _sum(symbol: str, meaning: str, unit: str, parts: Sequence[Formula]) -> Formula:
    return Formula(symbol, meaning, unit, " + ".join(part.symbol for part in parts), "definition")


PARAMETERS = "Narayanan et al. 2021, eq. 2"
FLOPS = "Narayanan et al. 2021, eq. 3: 96 B s l h^2 (1 + s/6h + V/16lh) if all is recomputed"
ZERO = "Rajbhandari et al. 2020 (ZeRO), sections 3 and 5"
KEPT = "Korthikanti et al. 2022, sections 4 and 5"
RING = "Shoeybi et al. 2019, section 3; of a ring: Patarasuk and Yuan 2009"
REDUCTION = "Patarasuk and Yuan 2009; Rajbhandari et al. 2020, section 7; Li et al. 2020 (DDP); Zhao et al. 2023 (FSDP)"
# What computing does not hide, but at least what comes before it and after it.
_DATA = "max(r*wg*P*(d - 1)/d/Bd + v*Ld - c*(compute + elementwise), k*(wg*P*p/l*(d - 1)/d/Bd + Ld))"
BUBBLE = "Narayanan et al. 2021, section 2.2"
ROOFLINE = "Williams et al. 2009 (Roofline)"
PALM = "Chowdhery et al. 2022 (PaLM), appendix B"

SIZES = (
    Formula("N", "parameters", "", "l*(12*h**2 + 13*h) + (V + s)*h", PARAMETERS),
    Formula("M", "model's operations per iteration", "FLOP", "72*B*s*l*h**2*(1 + s/(6*h)) + 6*B*s*h*V", PALM),
    Formula("F", "and recomputed ones", "FLOP", "M + R*24*B*s*l*h**2*(1 + s/(6*h))", FLOPS),
)
# Of a GPU of the fullest stage.
MEMORY = (
    Formula("parameters", "", "B", "wp*(P/z3 + (1 - 1/z3)*min(P, 2*(12*h**2 + 13*h)/t))", ZERO),
    Formula("gradients", "", "B", "wg*P/z2", ZERO),
    Formula("optimizer", "Adam's state", "B", "g*o*P/z1", ZERO),
    Formula("activations", "", "B", "f*l/p*((1 - R)*A + R*w*s*b*h/q) + R*A", KEPT),
    Formula(
        "output", "logits and their input", "B", "y*(4*s*b*V + 2*w*s*b*h)/t", "Korthikanti et al. 2022, section 4.3"
    ),
)
STAGE = (
    Formula("P", "parameters", "", "(l/p*(12*h**2 + 13*h) + E*h)/t", PARAMETERS),
    Formula("D", "activations of a layer", "B", "s*b*h*w/2*(10/q + 24/t + 5*u*a*s/(h*t))", "Korthikanti et al. 2022"),
    Formula("A", "of these, kept", "B", "D - (u - x)*s*b*h*w/2*5*a*s/(h*t)", "Korthikanti et al. 2022, section 5"),
    *MEMORY,
    _sum("G", "memory per GPU", "B", MEMORY),
    Formula("host", "in the host's memory, per GPU", "B", "(1 - g)*o*P/z1", "Ren et al. 2021 (ZeRO-Offload)"),
)
TIME = (
    Formula("compute", "matrix products", "s", "F/(n*X*e)", "Narayanan et al. 2021, section 5.1; e is fitted"),
    Formula("elementwise", "all else; memory-bound", "s", "m*l/p*(3 + R)*2*D/W", ROOFLINE),
    Formula("tensor", "all-reduces in layers", "s", "m*l/p*(4 + 2*R)*2*(t - 1)/t*w*s*b*h/Bt", RING),
    Formula("pipeline", "between stages", "s", "2*m*w*s*b*h/q/Bp", "Narayanan et al. 2021, section 3.2"),
    Formula("bubble", "idle stages", "s", "(p - 1)/m*(compute + elementwise + tensor + pipeline)", BUBBLE),
    Formula("data", "between replicas", "s", _DATA, REDUCTION),
    Formula("update", "of the parameters", "s", "P/z1*2*(o + wg)/(W if g else H)", ROOFLINE),
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
_CODE = {formula: compile(formula.text, formula.symbol, "eval") for formula in (*SIZES, *STAGE, *ITERATION, *TRAINING)}
_FUNCTIONS = {"__builtins__": {"min": min, "max": max}}


def evaluate(formulas: Sequence[Formula], values: Mapping[str, float]) -> dict[str, float]:
    """`values`, and with them the value of each formula."""
    known = dict(values)
    for formula in formulas:
        known[formula.symbol] = eval(_CODE[formula], _FUNCTIONS, known)  # noqa: S307  # constants of this file
    return known
