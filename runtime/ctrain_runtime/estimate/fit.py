"""Searches the layouts that a model can have on some GPUs, ranks those that fit, and says why."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ctrain_runtime.base.text import format_size
from ctrain_runtime.errors import ResourceError, UsageError
from ctrain_runtime.estimate.estimate import Case, Estimate, capacity, make_estimate
from ctrain_runtime.estimate.formulas import TIME
from ctrain_runtime.estimate.layout import SHARDED, divisors

EQUAL = 0.005  # times that differ by less agree in three digits
MAX_GPUS = 1 << 17  # beyond, the search for the fewest GPUs ends
_CHOICES = ("tp", "pp", "strategy", "recompute", "micro_batch")


@dataclass(frozen=True)
class Fit:
    """The estimates of the layouts that fit, best first, and of those that do not, smallest first."""

    ranked: Sequence[Estimate]
    too_large: Sequence[Estimate]

    def reasons(self) -> list[str]:
        """Why the best layout is not otherwise: what it costs to change one of its choices alone, for each choice the
        best change that fits and the smallest that does not."""
        best, reasons = self.ranked[0], dict[tuple[str, bool], str]()
        for other in (*self.ranked, *self.too_large):
            layout = other.case.layout
            changed = [name for name in _CHOICES if getattr(layout, name) != getattr(best.case.layout, name)]
            if len(changed) == 1:
                text = f"{changed[0].replace('_', ' ')} {getattr(layout, changed[0])}: {compare(other, best)}"
                reasons.setdefault((changed[0], other.fits), text)
        return list(reasons.values())


def compare(other: Estimate, best: Estimate) -> str:
    """What is against `other`, as in: 8.3% slower (bubble +2.0 s)."""
    if not other.fits:
        return f"does not fit: {format_size(other.values['G'])} per GPU"
    added = {part.symbol: other.values[part.symbol] - best.values[part.symbol] for part in TIME}
    most = max(added, key=lambda name: added[name])
    slower = other.values["T"] / best.values["T"] - 1
    return f"{slower:.1%} slower ({most} {added[most]:+.3g} s)" if slower > EQUAL else "equally fast"


def fit(case: Case, fixed: Collection[str]) -> Fit:
    """Search the layouts of a case; `fixed` are the fields of Layout that stay as in `case.layout`.

    Raises UsageError if no layout divides, ResourceError if none fits.
    """
    found = _search(case, fixed)
    if not found.ranked and not found.too_large:
        raise UsageError("no layout divides the layers, the heads and the batch", "Change --batch or --gpus")
    if not found.ranked:
        least = found.too_large[0]
        raise ResourceError(f"no layout fits: {excess(least)} with {least.case.layout.options()}", advice(case))
    return found


def excess(estimate: Estimate) -> str:
    """The memory of an estimate that does not fit."""
    usable = format_size(capacity(estimate.case.hardware))
    return f"{format_size(estimate.values['G'])} per GPU, {usable} are usable"


def advice(case: Case) -> str:
    """The next step for a case that does not fit: the best layout that does, on twice the GPUs if need be ..."""
    hardware, at_least = case.hardware, 4 * 12 * case.model.layers * case.model.hidden**2  # parameters and gradients
    while hardware.count < MAX_GPUS:
        batch = case.layout.batch if hardware is case.hardware else max(case.layout.batch, hardware.count)
        layout = replace(case.layout, batch=batch)
        larger = replace(case, hardware=hardware, layout=layout)
        ranked = _search(larger, ()).ranked if hardware.count * capacity(hardware) > at_least else ()
        if ranked:
            gpus = "" if hardware is case.hardware else f"--gpus {hardware.count} --batch {batch} "
            return f"Fits: {gpus}{ranked[0].case.layout.options()}"
        full_node = hardware.per_node if hardware.count < hardware.per_node else MAX_GPUS
        hardware = replace(hardware, count=min(2 * hardware.count, full_node))
    return "Use a smaller model, or GPUs with more memory"


def _search(case: Case, fixed: Collection[str]) -> Fit:
    """All layouts that divide; with offload only if nothing fits without."""
    for offload in (False, True):
        estimates = list(_estimates(case, fixed, offload=offload))
        ranked = sorted((one for one in estimates if one.fits), key=_rank)
        if ranked or "offload" in fixed:
            break
    return Fit(ranked, sorted((one for one in estimates if not one.fits), key=lambda one: one.values["G"]))


def _rank(estimate: Estimate) -> tuple[float, int, int, float]:
    """Time to three digits; then the simplest strategy; then large micro batches, whose kernels are more efficient than
    the formulas know."""
    layout = estimate.case.layout
    return float(f"{estimate.values['T']:.3g}"), SHARDED[layout.strategy], -layout.micro_batch, estimate.values["T"]


def _estimates(case: Case, fixed: Collection[str], *, offload: bool) -> Iterator[Estimate]:
    """Tensor parallelism stays within a node; fsdp is zero3 by another program."""
    hardware = case.hardware
    strategies = ("zero1", "zero2", "zero3") if offload else ("ddp", "zero1", "zero2", "zero3")
    searched: tuple[Sequence[Any], ...] = (
        divisors(math.gcd(case.model.heads, min(hardware.per_node, hardware.count))),
        divisors(math.gcd(case.model.layers, hardware.count)),
        strategies,
        ("none", "full"),
        (1, 2, 4, 8, 16, 32),
    )
    space = [(getattr(case.layout, name),) if name in fixed else values for name, values in zip(_CHOICES, searched)]
    for values in itertools.product(*space):
        changes: dict[str, Any] = dict(zip(_CHOICES, values))
        if "sequence_parallel" not in fixed:
            changes["sequence_parallel"] = changes["tp"] > 1  # the same bytes move, and less is kept
        layout = replace(case.layout, offload=case.layout.offload or offload, **changes)
        with contextlib.suppress(UsageError):  # it does not divide
            yield make_estimate(replace(case, layout=layout))
