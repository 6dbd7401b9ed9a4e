"""Fits the numbers of estimate/families.py to the published runs that are to be fitted, and prints them.

    PYTHONPATH=runtime python tests/samples/fit_families.py

The absolute logarithms of published over estimated time are made small, one number after the other: of each model
their mean, since runs of a model differ little, and of these the sum.
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
    "passes": (1.0, 4.0),
    "tensor": (0.0, 1.0),
    "bubble": (0.0, 1.0),
    "between": (0.0, 1.0),
}
# `logits` is no result of a fit: one kernel makes the gradients of llm.c's logits in place, a compiler joins PyTorch's.
# What is fitted; of few runs, little can be: the one run of eager programs on H100 has the `narrow` of those on A100.
FITTED = {
    ("fsdp", "A100"): ("efficiency", "narrow", "attention", "passes", "between"),
    ("fsdp", "H100"): ("efficiency", "narrow", "attention", "passes", "between"),
    ("megatron", "H100"): ("efficiency", "tensor", "bubble"),
    ("fp8", "H100"): ("efficiency",),
    ("ddp", "A100"): ("efficiency",),
    ("ddp", "H100"): ("efficiency",),
    ("eager", "A100"): ("efficiency", "narrow"),
    ("eager", "H100"): ("efficiency",),
    ("compiled", "A100"): ("efficiency",),
    ("compiled", "H100"): ("efficiency",),
    ("megatron", "A100"): ("efficiency",),
}


def loss(group: tuple[str, str], family: Family, runs: list[Run]) -> float:
    families._FAMILIES[group] = family
    models: dict[str, list[float]] = {}
    for run in runs:
        models.setdefault(run.model, []).append(abs(math.log(run.ratio)))
    return sum(sum(errors) / len(errors) for errors in models.values())


def fit(group: tuple[str, str], runs: list[Run]) -> Family:
    """The best of what is reached from the numbers of now, and from a third and two thirds of all bounds."""
    names, now = FITTED[group], families._FAMILIES[group]
    starts = [
        {name: low + (high - low) * part / 3 for name in names for low, high in [BOUNDS[name]]} for part in (1, 2)
    ]
    tried = [descend(group, replace(now, **start), runs) for start in ({}, *starts)]
    best = min(tried, key=lambda family: loss(group, family, runs))
    families._FAMILIES[group] = best
    return best


def descend(group: tuple[str, str], best: Family, runs: list[Run]) -> Family:
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
    return best


def main() -> None:
    for group in families._FAMILIES:
        runs = [run for run in published_runs() if run.group == group and run.role == "fitted"]
        fitted = fit(group, runs)
        numbers = ", ".join(f"{getattr(fitted, name):.3g}" for name in BOUNDS)
        models = len({run.model for run in runs})
        print(f"    {group}: Family({numbers}),  # {models} models, mean {loss(group, fitted, runs) / models:.1%}")


if __name__ == "__main__":
    main()
