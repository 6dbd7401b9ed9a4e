"""Published runs, what is estimated for them, and how far that is off: the error of an estimate. docs/estimate.md."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctrain_runtime.estimate.estimate import Case, Estimate, make_estimate
from ctrain_runtime.estimate.families import family_of, generation_of
from ctrain_runtime.estimate.hardware import GPU_TYPES, make_hardware
from ctrain_runtime.estimate.layout import Layout
from ctrain_runtime.estimate.model import Model

PUBLISHED = Path(__file__).with_name("published.csv")
PER_NODE = 8  # of all published runs
FEW = 20  # runs, of which the least and the most say too little: the band is twice as wide
SHARE = 0.9  # of the judged runs, whose errors make the band
_NUMBERS = ("layers", "hidden", "heads", "sequence", "vocabulary", "kv_heads", "ffn")


@dataclass(frozen=True)
class Run:
    """A published run. `seen`: the source was read; else it was entered from memory. `fitted`: the families' numbers
    were fitted to it; else it judges them."""

    source: str
    model: str
    seen: bool
    fitted: bool
    case: Case
    published: float
    unit: str

    @property
    def group(self) -> tuple[str, str]:
        return family_of(self.case.layout), generation_of(self.case.hardware.gpu)

    def estimated(self) -> float:
        """What is estimated, in the unit in which the run was published."""
        values = make_estimate(self.case).values
        return {
            "tokens/s per GPU": values["tokens_per_second"] / values["n"],
            "hardware TFLOP/s": values["hfu"] * values["X"] / 1e12,
            "model TFLOP/s": values["mfu"] * values["X"] / 1e12,
            "s per iteration": values["T"],
        }[self.unit]

    @property
    def ratio(self) -> float:
        """The published time over the estimated one: above 1, the estimate is too fast."""
        ratio = self.published / self.estimated()
        return ratio if self.unit == "s per iteration" else 1 / ratio


@dataclass(frozen=True)
class Band:
    """What the judged runs of a family say of a time: it is `low` to `high` times the estimated one, as for nine in ten
    of `runs`; twice as wide if these are few. `nearest`: the published run of the family whose size is nearest."""

    low: float
    high: float
    runs: int
    nearest: Run


@functools.cache
def published_runs() -> tuple[Run, ...]:
    """All rows of published.csv. Of each group every other one is fitted to; those from memory never are."""
    runs: list[Run] = []
    seen: dict[tuple[str, str], int] = {}
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            case, known = _case(row), row["seen"] == "yes"
            group = family_of(case.layout), generation_of(case.hardware.gpu)
            seen[group] = seen.get(group, 0) + known
            fitted = known and seen[group] % 2 == 1
            runs.append(Run(row["source"], row["model"], known, fitted, case, float(row["published"]), row["unit"]))
    return tuple(runs)


def _case(row: dict[str, str]) -> Case:
    shape: dict[str, Any] = {name: int(row[name]) for name in _NUMBERS}
    if row["llama_like"] == "True":
        shape.update(gated=True, learned_positions=False, biases=False)
    gpus, gpu = int(row["gpus"]), GPU_TYPES[row["gpu"]]
    layout: dict[str, Any] = {name: row[name] for name in ("strategy", "recompute", "attention")}
    layout |= {name: int(row[name]) for name in ("batch", "micro_batch", "tp", "pp")}
    hardware, _ = make_hardware(gpu, gpus, PER_NODE, PER_NODE)
    return Case(Model(tied=row["tied"] == "True", **shape), hardware, Layout(**layout))


@functools.cache
def ratios(group: tuple[str, str]) -> tuple[float, ...]:
    """Those of the runs that judge a group, sorted; of all its runs where fewer than three judge it."""
    of_group = [run for run in published_runs() if run.group == group]
    judging = [run for run in of_group if not run.fitted]
    return tuple(sorted(run.ratio for run in (judging if len(judging) >= 3 else of_group)))


def find_band(estimate: Estimate) -> Band:
    """The error to expect of an estimate, by the published runs of its family of programs and generation of GPUs."""
    group = family_of(estimate.case.layout), generation_of(estimate.case.hardware.gpu)
    found, case = ratios(group), estimate.case
    outside = (1 - SHARE) / 2 * len(found)
    low, high = found[math.floor(outside)], found[-1 - math.floor(outside)]
    if len(found) < FEW:
        low, high = low**2, high**2

    def distance(run: Run) -> float:
        """In factors of two: of the model's size, of the number of GPUs and of the sequence."""
        other = run.case
        pairs = (
            (case.model.layers * case.model.hidden**2, other.model.layers * other.model.hidden**2),
            (case.hardware.count, other.hardware.count),
            (case.model.sequence, other.model.sequence),
        )
        return sum(abs(math.log2(mine / its)) for mine, its in pairs)

    nearest = min((run for run in published_runs() if run.group == group), key=distance)
    return Band(min(low, 1), max(high, 1), len(found), nearest)


def median(numbers: Sequence[float]) -> float:
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]
