"""Fits the numbers of estimate/families.py to the published runs that are to be fitted, and prints them.

    PYTHONPATH=runtime python tests/samples/fit_families.py

The sum of the absolute logarithms of published over estimated time is made small, one number after the other.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ctrain_runtime.estimate import families
from ctrain_runtime.estimate.evidence import Run, published_runs
from ctrain_runtime.estimate.families import Family

BOUNDS = {
    "efficiency": (0.2, 0.98),
    "narrow": (0.0, 3000.0),
    "attention": (0.1, 0.8),
    "passes": (0.5, 12.0),
    "tensor": (0.0, 1.0),
    "bubble": (0.0, 1.0),
}
# What is fitted; of few runs, little can be.
FITTED = {
    ("fsdp", "A100"): ("efficiency", "narrow", "attention", "passes"),
    ("fsdp", "H100"): ("efficiency", "narrow", "attention", "passes"),
    ("megatron", "H100"): ("efficiency", "tensor", "bubble"),
    ("plain", "A100"): ("efficiency",),
    ("plain", "H100"): ("efficiency",),
    ("megatron", "A100"): ("efficiency",),
}


def loss(group: tuple[str, str], family: Family, runs: list[Run]) -> float:
    families._FAMILIES[group] = family
    return sum(abs(math.log(run.ratio)) for run in runs)


def fit(group: tuple[str, str], runs: list[Run]) -> Family:
    best = families._FAMILIES[group]
    names = FITTED[group]
    least, step = loss(group, best, runs), 0.25
    while step > 0.002:
        improved = False
        for name in names:
            low, high = BOUNDS[name]
            for sign in (1, -1):
                value = min(high, max(low, getattr(best, name) + sign * step * (high - low)))
                trial = replace(best, **{name: value})
                error = loss(group, trial, runs)
                if error < least - 1e-9:
                    best, least, improved = trial, error, True
        step = step if improved else step / 2
    families._FAMILIES[group] = best
    return best


def main() -> None:
    for group in families._FAMILIES:
        runs = [run for run in published_runs() if run.group == group and run.fitted]
        found = fit(group, runs)
        numbers = ", ".join(f"{getattr(found, name):.3g}" for name in BOUNDS)
        print(f"    {group}: Family({numbers}),  # {len(runs)} runs, mean {loss(group, found, runs) / len(runs):.1%}")


if __name__ == "__main__":
    main()
