"""Searches the layouts that a model can have on some GPUs, ranks those that fit, and says why."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ctrain_runtime.base.text import format_size
from ctrain_runtime.errors import ResourceError, UsageError
from ctrain_runtime.estimate.estimate import Case, Estimate, capacity, make_estimate
from ctrain_runtime.estimate.evidence import find_band, is_outside, memory_is_unknown
from ctrain_runtime.estimate.families import SELDOM, family_of
from ctrain_runtime.estimate.formulas import TIME
from ctrain_runtime.estimate.layout import SHARDED, Layout, check, divisors
from ctrain_runtime.estimate.packaged import is_packaged_gpt

EQUAL = 0.05  # estimates are not better than that: which of two times is shorter is not known
MARGIN = 0.05  # of the usable memory, which a layout that is chosen leaves free
MAX_GPUS = 1 << 17  # beyond, the search for the fewest GPUs ends
MOST_FOR_DAYS = 1 << 14  # GPUs: no published run that judges estimates had more
MOST_UNEVEN = 1.1  # layers that the stages have room for, to layers
LEAST_PART = 4096  # tokens of a sequence on a GPU: published runs with context parallelism have as many
_CHOICES = ("tp", "pp", "cp", "strategy", "recompute", "micro_batch")


@dataclass(frozen=True)
class Fit:
    """The estimates of the layouts that fit, best first, and of those that do not, smallest first."""

    ranked: Sequence[Estimate]
    too_large: Sequence[Estimate]

    def reasons(self) -> list[str]:
        """Why the best layout is not otherwise: what it costs to change one of its choices, with the micro batch that
        suits it, for each choice the best change that fits and the smallest that does not."""
        best, reasons = self.ranked[0], dict[tuple[str, bool], str]()
        for other in (*self.ranked, *self.too_large):
            layout = other.case.layout
            changed = [name for name in _CHOICES if getattr(layout, name) != getattr(best.case.layout, name)]
            if len(changed) == 1 or (changed[1:] == ["micro_batch"] and has_margin(other)):
                choices = ", ".join(f"{name.replace('_', ' ')} {getattr(layout, name)}" for name in changed)
                text = f"{choices}: {compare(other, best)}"
                reasons.setdefault((changed[0], other.fits), text)
        return list(reasons.values())


def compare(other: Estimate, best: Estimate) -> str:
    """What is against `other`, as in: 8.3% slower (bubble +2.0 s)."""
    if not has_margin(other):
        unknown = "may not fit" if memory_is_unknown(other) else "does not fit"
        return f"{'leaves no margin' if other.fits else unknown}: {format_size(other.values['G'])} per GPU"
    added = {part.symbol: other.values[part.symbol] - best.values[part.symbol] for part in TIME}
    most = max(added, key=lambda name: added[name])
    slower = other.values["T"] / best.values["T"] - 1
    return f"{slower:.1%} slower ({most} {added[most]:+.3g} s)" if slower > EQUAL else "equally fast"


def fit(case: Case, fixed: Collection[str]) -> Fit:
    """Search the layouts of a case; `fixed` are the fields of Layout that stay as in `case.layout`.

    Where none leaves a margin, those that fit without, or may. Raises UsageError if no layout divides, ResourceError if
    none fits.
    """
    result = _search(case, fixed)
    if not result.ranked and not result.too_large:
        check(case.model, case.hardware, replace(case.layout, batch=case.hardware.count * case.layout.micro_batch))
        raise UsageError("no layout divides the layers, the heads and the batch", "Change --batch or --gpus")
    if not result.ranked:
        possible = [one for one in result.too_large if one.fits or memory_is_unknown(one)]
        if possible:
            return Fit(_rank(possible), [one for one in result.too_large if one not in possible])
        least = result.too_large[0]
        raise ResourceError(f"no layout fits: {excess(least)} with {least.case.layout.options()}", advice(case))
    return result


def best_change(estimate: Estimate) -> Optional[Estimate]:
    """The change of one choice, with the micro batch that suits it, that helps most; None if none is worth it."""
    case, chosen = estimate.case, {*_CHOICES, "sequence_parallel"}
    changed: list[Estimate] = []
    for name in _CHOICES:
        free = {name, "micro_batch", *(["sequence_parallel"] if name == "tp" else [])}
        changed += filter(has_margin, _estimates(case, chosen - free, offload=case.layout.offload))
    best = min(changed, key=lambda one: one.values["T"], default=estimate)
    return best if best.values["T"] * (1 + EQUAL) < estimate.values["T"] else None


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
        ranked = _rank([one for one in estimates if has_margin(one)])
        if ranked or "offload" in fixed:
            break
    return Fit(ranked, sorted((one for one in estimates if not has_margin(one)), key=lambda one: one.values["G"]))


def has_margin(estimate: Estimate) -> bool:
    return estimate.values["G"] <= capacity(estimate.case.hardware) * (1 - MARGIN)


def _rank(estimates: Sequence[Estimate]) -> list[Estimate]:
    """By time; of those that are as fast as the fastest, first what published runs have judged, then what the packaged
    gpt trains, then the simplest strategy, then the fewest parts of the model. Where a model is split, an optimizer
    that is shared costs nothing."""
    if not estimates:
        return []
    limit = min(one.values["T"] for one in estimates) * (1 + EQUAL)

    def key(one: Estimate) -> tuple[float, ...]:
        layout, time = one.case.layout, one.values["T"]
        if time > limit:
            return (1, time)
        sharing = 1 if layout.splits_model and layout.strategy == "ddp" else SHARDED[layout.strategy]
        parts = layout.tp * layout.pp * layout.cp
        uncertain = family_of(layout) in SELDOM or is_outside(one.case)
        own = not is_packaged_gpt(one.case.model, layout)
        return (0, uncertain, own, sharing, parts, layout.strategy == "ddp", time)

    return sorted(estimates, key=key)


def _fills(layers: int, stages: int) -> bool:
    """Whether stages of a pipeline have about as many layers each."""
    return stages <= layers and -(-layers // stages) * stages <= layers * MOST_UNEVEN


def _estimates(case: Case, fixed: Collection[str], *, offload: bool) -> Iterator[Estimate]:
    """Tensor parallelism stays within a node."""
    hardware = case.hardware
    strategies = ("zero1", "zero2", "zero3") if offload else ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp")
    searched: tuple[Sequence[Any], ...] = (
        divisors(math.gcd(case.model.heads, min(hardware.per_node, hardware.count))),
        [stages for stages in divisors(hardware.count) if _fills(case.model.layers, stages)],
        [parts for parts in (1, 2, 4, 8) if parts == 1 or case.model.sequence >= parts * LEAST_PART],
        strategies,
        ("none", "selective", "full"),
        (1, 2, 4, 8, 16, 32),
    )
    space = [(getattr(case.layout, name),) if name in fixed else values for name, values in zip(_CHOICES, searched)]
    for values in itertools.product(*space):
        changes: dict[str, Any] = dict(zip(_CHOICES, values))
        if "sequence_parallel" not in fixed:
            changes["sequence_parallel"] = changes["tp"] > 1  # the same bytes move, and less is kept
        layout = replace(case.layout, offload=case.layout.offload or offload, **changes)
        if _is_silent(layout, fixed):
            continue
        with contextlib.suppress(UsageError):  # it does not divide
            yield make_estimate(replace(case, layout=layout))


def _is_silent(layout: Layout, fixed: Collection[str]) -> bool:
    """Whether an option that is given would change nothing in this layout."""
    return (
        ("sequence_parallel" in fixed and layout.sequence_parallel and layout.tp == 1)
        or ("schedule" in fixed and layout.pp == 1)
        or (layout.offload and not layout.strategy.startswith("zero"))
    )


def fewest_gpus(case: Case, fixed: Collection[str], batch_of: Callable[[int], int], seconds: float) -> list[Estimate]:
    """The best estimates on more and more nodes, up to the first whose training ends in `seconds` at the slow end of
    its band; on the last, none may. Raises ResourceError if the model fits on none of them."""
    tried: list[Estimate] = []
    nodes = 1
    while nodes * case.hardware.per_node <= MOST_FOR_DAYS:
        count = nodes * case.hardware.per_node
        layout = replace(case.layout, batch=batch_of(count))
        ranked = _search(replace(case, hardware=replace(case.hardware, count=count), layout=layout), fixed).ranked
        tried += ranked[:1]
        if ranked and ranked[0].values["seconds"] * find_band(ranked[0]).high <= seconds:
            break
        nodes = nodes * 3 // 2 if nodes & (nodes - 1) == 0 and nodes > 1 else nodes // 3 * 4 if nodes > 1 else 2
    if not tried:
        raise ResourceError(f"fits on no number of GPUs up to {MOST_FOR_DAYS}", advice(case))
    return tried
