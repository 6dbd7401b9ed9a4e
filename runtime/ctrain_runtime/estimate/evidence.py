"""Published runs, what is estimated for them, and how far that is off: the error of an estimate. docs/estimate.md."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ctrain_runtime.estimate.estimate import Case, Estimate, capacity, make_estimate
from ctrain_runtime.estimate.families import family_of, fitted_generation, generation_of, is_fitted
from ctrain_runtime.estimate.hardware import GPU_TYPES, make_hardware
from ctrain_runtime.estimate.layout import Layout
from ctrain_runtime.estimate.model import Model
from ctrain_runtime.estimate.packaged import is_packaged_gpt

PUBLISHED = Path(__file__).with_name("published.csv")
PER_NODE = 8  # of all published runs
FEW_JUDGE, FEW_RUNS = 20, 5  # with fewer, the least and the most say too little: the band is twice as wide
LEAST = 3  # runs that say anything
FLOOR = 1.25  # of few runs: that they agree says little
SHARE = 0.9  # of the runs, whose errors make the band
Role = Literal["fitted", "judged", "assumed", "other"]
_NUMBERS = ("layers", "hidden", "heads", "sequence", "vocabulary", "kv_heads", "ffn")
_WORDS = ("strategy", "recompute", "attention", "precision", "loss")
_COUNTS = ("batch", "micro_batch", "tp", "pp", "interleave", "cp")


@dataclass(frozen=True)
class Run:
    """A published run: the families' numbers were fitted to it, or it judges them; or neither, since its layout is
    assumed, or its program is of no family. `peak`: of a GPU's memory, in bytes; 0 if it was not published."""

    source: str
    model: str
    role: Role
    case: Case
    published: float
    unit: str
    peak: float = 0

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
    """What the runs of a family say of a time: it is `low` to `high` times the estimated one, as for nine in ten of
    `runs`; twice as wide if few judge. `nearest`: the published run of the family whose size is nearest."""

    low: float
    high: float
    runs: int
    nearest: Run


@functools.cache
def published_runs() -> tuple[Run, ...]:
    """All rows of published.csv. Of each group that has numbers of its own every other model is fitted to, in the order
    of the file: a model that judges was never fitted to."""
    runs: list[Run] = []
    models: dict[tuple[str, str], list[str]] = {}
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, restval=""):
            case, known = _case(row), row["seen"] == "yes"
            group = family_of(case.layout), generation_of(case.hardware.gpu)
            of_group = models.setdefault(group, [])
            if known and row["model"] not in of_group:
                of_group.append(row["model"])
            role: Role = "other" if row["seen"] == "other" else "assumed"
            if known:
                role = "fitted" if is_fitted(*group) and of_group.index(row["model"]) % 2 == 0 else "judged"
            numbers = float(row["published"]), row["unit"], float(row["peak"] or 0) * 2**30
            runs.append(Run(row["source"], row["model"], role, case, *numbers))
    return tuple(runs)


def _case(row: dict[str, str]) -> Case:
    shape: dict[str, Any] = {name: int(row[name]) for name in _NUMBERS}
    if row["llama_like"] == "True":
        shape.update(gated=True, learned_positions=False, biases=False)
    gpus, gpu = int(row["gpus"]), GPU_TYPES[row["gpu"]]
    bandwidth, memory = float(row["bandwidth"] or gpu.bandwidth), float(row["memory"] or gpu.memory)
    gpu = replace(gpu, bandwidth=bandwidth, memory=memory)  # torchtitan's H100 have slower memory, and more
    layout: dict[str, Any] = {name: row[name] for name in _WORDS if row[name]}
    layout.update({name: int(row[name]) for name in _COUNTS if row[name]})
    layout["sequence_parallel"] = row["sequence_parallel"] == "True"
    layout["compiled"] = row["compiled"] == "True" and Layout(**layout).can_be_compiled
    hardware, _ = make_hardware(gpu, gpus, PER_NODE, int(row["nics"] or PER_NODE), int(row["nic_speed"] or 0))
    return Case(Model(tied=row["tied"] == "True", **shape), hardware, Layout(**layout))


@functools.cache
def evidence_for(kind: str, *generations: str) -> tuple[Run, ...]:
    """The runs of a family and the first of these generations of which more than a few are known, else of the A100."""
    runs = [run for run in published_runs() if run.group[0] == kind and run.role in ("fitted", "judged")]
    of = {generation: tuple(run for run in runs if run.group[1] == generation) for generation in (*generations, "A100")}
    return next((known for known in of.values() if len(known) >= LEAST), of["A100"])


@functools.cache
def _spread(kind: str, *generations: str) -> tuple[float, float, int]:
    """The least and the most ratio of nine in ten runs, and how many these are: of those that judge, or of those that
    were fitted to, if that is further off, since runs of a model differ little; of all together, where few judge."""
    runs = evidence_for(kind, *generations)
    halves = [[run.ratio for run in runs if run.role == role] for role in ("judged", "fitted")]
    if len(halves[0]) < FEW_JUDGE // 2:
        low, high = _most_of([run.ratio for run in runs])
        power = 1 if len(runs) >= FEW_RUNS else 2
        return min(low**power, 1 / FLOOR), max(high**power, FLOOR), len(runs)
    power = 1 if len(halves[0]) >= FEW_JUDGE else 2
    low, high = _most_of(halves[0])
    least, most = _most_of(halves[1])
    return min(low**power, least), max(high**power, most), len(runs)


def _most_of(ratios: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(ratios)
    outside = math.floor((1 - SHARE) / 2 * len(ordered))
    return min(ordered[outside], 1.0), max(ordered[-1 - outside], 1.0)


def groups(case: Case) -> tuple[str, str, str]:
    """The family of an estimate, and the generations whose runs judge it."""
    gpu = case.hardware.gpu
    return family_of(case.layout), generation_of(gpu), fitted_generation(gpu)


def find_band(estimate: Estimate) -> Band:
    """The error to expect of an estimate, by the published runs of its family of programs and generation of GPUs."""
    case = estimate.case
    gpu, group = case.hardware.gpu, groups(case)

    def distance(run: Run) -> float:
        """In factors of two: of the model's size, of the number of GPUs, of the sequence; another type is one more."""
        other = run.case
        pairs = (
            (size_of(case.model), size_of(other.model)),
            (case.hardware.count, other.hardware.count),
            (case.model.sequence, other.model.sequence),
        )
        return (other.hardware.gpu != gpu) + sum(abs(math.log2(mine / its)) for mine, its in pairs)

    low, high, runs = _spread(*group)
    power = 2 if is_outside(case) else 1
    return Band(low**power, high**power, runs, min(evidence_for(*group), key=distance))


def memory_is_unknown(estimate: Estimate) -> bool:
    """Whether it does not fit by the estimate, while published runs of its family ran that did so no less. Of the
    packaged gpt memory was measured."""
    most = capacity(estimate.case.hardware) * most_memory(*groups(estimate.case))
    return (
        not (estimate.fits or is_packaged_gpt(estimate.case.model, estimate.case.layout))
        and estimate.values["G"] <= most
    )


@functools.cache
def most_memory(kind: str, *generations: str) -> float:
    """How many times their GPUs' usable memory published runs took by the estimate, at most; 1 if all fit."""
    runs = evidence_for(kind, *generations)
    return max(1.0, *(make_estimate(run.case).values["G"] / capacity(run.case.hardware) for run in runs))


@functools.cache
def longest_sequence(kind: str, *generations: str) -> int:
    """Tokens, of the runs of a family."""
    return max(run.case.model.sequence for run in evidence_for(kind, *generations))


def is_outside(case: Case) -> bool:
    """Whether its model or its sequences are larger than those of all runs that judge it, or fewer tokens are at once
    on a GPU, or it splits layers beside ZeRO 2 or 3, as none of them does."""
    group = groups(case)
    if splits_beside_zero(case.layout):
        return True
    is_larger = case.model.sequence > longest_sequence(*group) or size_of(case.model) > largest_model(*group)
    return is_larger or tokens_at_once(case) < fewest_tokens(*group)


def splits_beside_zero(layout: Layout) -> bool:
    return layout.splits_model and layout.strategy in ("zero2", "zero3")


def size_of(model: Model) -> float:
    """About, of its layers: 12 times as many parameters."""
    return model.layers * model.hidden**2


@functools.cache
def largest_model(kind: str, *generations: str) -> float:
    return max(size_of(run.case.model) for run in evidence_for(kind, *generations))


def tokens_at_once(case: Case) -> float:
    """Of a micro batch on a GPU: with few, kernels are short."""
    return case.layout.micro_batch * case.model.sequence / case.layout.cp


@functools.cache
def fewest_tokens(kind: str, *generations: str) -> float:
    """At once on a GPU, of the runs of a family."""
    return min(tokens_at_once(run.case) for run in evidence_for(kind, *generations))


def median(numbers: Sequence[float]) -> float:
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]
