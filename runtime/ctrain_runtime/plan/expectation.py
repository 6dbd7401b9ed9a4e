"""What the training of a job will need, by what its job.yaml says of it. Pure; docs/estimate.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ctrain_runtime.base import config
from ctrain_runtime.base.text import format_duration, pluralize
from ctrain_runtime.base.time_limit import format_limit
from ctrain_runtime.errors import ConfigError, ResourceError, UsageError
from ctrain_runtime.estimate.estimate import Case, capacity, make_estimate
from ctrain_runtime.estimate.evidence import find_band, memory_is_unknown
from ctrain_runtime.estimate.fit import advice, excess
from ctrain_runtime.estimate.formulas import MEMORY
from ctrain_runtime.estimate.hardware import GpuType, ambiguity, find_gpus, make_hardware
from ctrain_runtime.estimate.layout import Layout
from ctrain_runtime.estimate.model import Model
from ctrain_runtime.job import Job, Training, Value
from ctrain_runtime.plan.model import Expectation
from ctrain_runtime.plan.size import JobSize

ALL = "all"  # the number of ranks
AT_MOST = "largest_micro_batch"  # of a program that adapts it to a replica's share
LARGEST = 1 << 24  # of numbers
MAY_BE_ZERO = ("training.model: kv_heads", "training.model: ffn")  # as in Model
OF_MODELS = {part.name for part in fields(Model)}  # keys; a Layout has none of them
# No memory is too small, and each time is NaN.
UNKNOWN = GpuType("", math.nan, math.nan, math.inf, math.nan, math.nan, math.nan)


def expect(
    job: Job, command: Sequence[str], size: JobSize, gpus: Sequence[str], network: float
) -> tuple[Expectation, tuple[str, ...]]:
    """What `command` of a job will need on GPUs of the types `gpus`, one per rank, and notes. `network` is the measured
    bandwidth of a node in GB/s (0: unknown).

    Raises UsageError for a job that does not say what it trains, or nothing possible; ResourceError if it does not fit.
    """
    if not job.training:
        hint = "Add `training` to its job.yaml (ctrain help estimate), or omit --estimate"
        raise UsageError(f"job {job.name} cannot be estimated: it does not say what it trains", hint)
    ranks, nics = size.world_size, max(1, size.gpus_per_node)
    types = _gpu_types(size, gpus)
    try:
        model, layout, steps = read_training(job.training, command, ranks)
        for gpu in types:  # of an ambiguous name, the smallest that it can mean and that suffices
            hardware, notes = make_hardware(gpu, ranks, size.ranks_per_node, nics, measured=network)
            case = Case(model, hardware, layout)
            estimate = make_estimate(case)
            if estimate.fits:
                break
    except (ConfigError, UsageError) as error:
        raise UsageError(f"job {job.name} cannot be estimated: {error.message}", error.hint) from error
    may_fit = memory_is_unknown(estimate)
    if not (estimate.fits or may_fit):
        hint = advice(case).replace("Fits:", "Fits, in options of ctrain estimate:")
        raise ResourceError(f"job {job.name} does not fit: {excess(estimate)}", hint)
    if may_fit:
        notes.append(f"unknown whether it fits: {excess(estimate)}, as of published runs that had enough")
    notes += ambiguity(next(iter(gpus), ""), types, gpu)
    if gpu is not types[0]:
        notes.append(f"does not fit {types[0].name}: it runs only if the GPUs are {gpu.name}")
    seconds = estimate.values["T"]
    slowest = None if gpu is UNKNOWN else seconds * find_band(estimate).high
    if slowest and size.time_limit is not None and slowest * steps > 60 * size.time_limit:
        take = f"take {format_duration(seconds * steps)}, or up to {format_duration(slowest * steps)}"
        limit = f"the limit is {format_limit(size.time_limit)}: pass --time, or resume the run later"
        notes.append(f"{pluralize(steps, 'step')} {take}; {limit}")
    expected = Expectation(
        gpu=gpu.name,
        parameters=round(estimate.values["N"]),
        memory={part.symbol: round(estimate.values[part.symbol]) for part in MEMORY},
        usable=None if gpu is UNKNOWN else round(capacity(hardware)),
        tokens=layout.batch * model.sequence,
        steps=steps,
        step_seconds=None if gpu is UNKNOWN else seconds,
        training={**asdict(model), **asdict(layout)},
        fastest=None if gpu is UNKNOWN else seconds * find_band(estimate).low,
        slowest=slowest,
    )
    return expected, () if gpu is UNKNOWN else tuple(notes)


def _gpu_types(size: JobSize, gpus: Sequence[str]) -> tuple[GpuType, ...]:
    """The types that the ranks' GPUs can be; UNKNOWN if they differ, are shared, or are none that estimates know."""
    if len(set(gpus)) != 1 or size.ranks_per_node > size.gpus_per_node:
        return (UNKNOWN,)
    try:
        return find_gpus(*set(gpus))
    except UsageError:
        return (UNKNOWN,)


def read_training(training: Training, command: Sequence[str], ranks: int) -> tuple[Model, Layout, int]:
    """The model, the layout and the steps that `command` trains. Raises ConfigError for what is none."""
    settings, model, layout = read_settings(command), dict(training.model), dict(training.layout)
    for condition, changes in training.when.items():
        pairs = [word.partition("=") for word in condition.split()]
        if not pairs or not all(equals for _, equals, _ in pairs):
            raise ConfigError(f"training.when: {condition!r} is not NAME=VALUE", "As in: bf16=true: {precision: bf16}")
        if all(settings.get(name, "").lower() == value.lower() for name, _, value in pairs):
            for key, value in changes.items():
                (model if key in OF_MODELS else layout)[key] = value

    def resolve(key: str, values: Mapping[str, Value]) -> dict[str, Any]:
        return {name: _resolve(f"{key}: {name}", value, settings, ranks) for name, value in values.items()}

    steps = resolve("training", {"steps": training.steps})["steps"]
    if type(steps) is not int:
        raise ConfigError(f"training: steps must be an integer, not {steps!r}")
    parts = {"training.model": model, "training.layout": layout}
    shape, spread = (resolve(key, values) for key, values in parts.items())
    if adapts := AT_MOST in spread:
        spread["micro_batch"] = spread.pop(AT_MOST)
    loaded = config.load(Layout, spread, "training.layout")
    return (
        config.load(Model, shape, "training.model"),
        loaded.with_fitting_micro_batch(ranks) if adapts else loaded,
        steps,
    )


def read_settings(command: Sequence[str]) -> dict[str, str]:
    """The settings among arguments: the last NAME=VALUE, --NAME=VALUE or --NAME VALUE of each; --NAME alone is true."""
    settings = {}
    for word, following in zip(command, (*command[1:], "--")):
        name, equals, value = word.partition("=")
        if equals or name.startswith("--"):
            value = value if equals else "true" if following.startswith("--") else following
            settings[name.lstrip("-").replace("-", "_")] = value
    return settings


def _resolve(key: str, value: Value, settings: Mapping[str, str], ranks: int) -> Value:
    """A value of `training`: that of the setting which it names, or its own; as a number if it is one."""
    if isinstance(value, str):
        name, equals, default = value.partition("=")
        value = settings.get(name, default) if equals else ranks if value == ALL else value
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    if type(value) is int and not 1 <= value <= LARGEST and (value or key not in MAY_BE_ZERO):
        raise ConfigError(f"{key} must be a positive integer of at most {LARGEST}, not {value}")
    return value
