"""Estimates as text and as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Optional

from ctrain_runtime.base.text import format_seconds, format_size, pluralize, table
from ctrain_runtime.estimate.estimate import Estimate, capacity
from ctrain_runtime.estimate.evidence import (
    Band,
    fewest_tokens,
    find_band,
    groups,
    largest_model,
    longest_sequence,
    memory_is_unknown,
    most_memory,
    published_runs,
    size_of,
    splits_beside_zero,
    tokens_at_once,
)
from ctrain_runtime.estimate.families import NAMES, SELDOM, generation_of
from ctrain_runtime.estimate.fit import Fit, best_change, compare, has_margin
from ctrain_runtime.estimate.formulas import MEMORY, TIME, Formula
from ctrain_runtime.estimate.packaged import example_for

BAR_COLUMNS = 30
SHOWN = 8  # layouts
DAY = 86400
HOPELESS = 20  # times the days that are wanted
_SCALES = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def describe(estimate: Estimate, search: Optional[Fit], notes: Sequence[str], blocks: str) -> str:
    """The estimate as a few aligned tables; of a search, first the layouts search."""
    ranking = [_ranking(search)] if search else []
    seconds = estimate.values["T"]
    time = f"time of an iteration: {format_seconds(seconds)}\n{_bars(TIME, estimate, seconds, format_seconds, blocks)}"
    parts = [
        _answer(estimate, None if search else best_change(estimate)),
        _head(estimate, notes),
        *ranking,
        _memory(estimate, blocks),
        time,
        _result(estimate),
    ]
    return "\n\n".join(parts)


def as_data(
    estimate: Estimate, search: Optional[Fit], notes: Sequence[str], tried: Sequence[Estimate] = ()
) -> dict[str, Any]:
    """The same for JSON. `values` are by the names of the formulas, in their SI units."""
    return {
        **asdict(estimate.case),
        "values": {formula.symbol: estimate.values[formula.symbol] for formula in estimate.formulas},
        "usable_memory": capacity(estimate.case.hardware),
        "fits": None if memory_is_unknown(estimate) else estimate.fits,
        "band": _band_data(estimate),
        "example": example_for(estimate.case.model, estimate.case.layout),
        "layouts": [{**asdict(one.case.layout), "T": one.values["T"]} for one in _distinct(search)],
        "reasons": search.reasons() if search else [],
        "tried": [{"gpus": one.case.hardware.count, **_band_of_days(one)} for one in tried],
        "notes": list(notes),
    }


def _band_data(estimate: Estimate) -> Optional[dict[str, Any]]:
    """Factors of the estimated time; none if a measured rate stands for it."""
    if estimate.case.efficiency is not None:
        return None
    band = find_band(estimate)
    nearest = {"source": band.nearest.source, "model": band.nearest.model, "gpus": band.nearest.case.hardware.count}
    return {"low": band.low, "high": band.high, "runs": band.runs, "nearest": nearest}


def _band_of_days(estimate: Estimate) -> dict[str, float]:
    band, days = find_band(estimate), estimate.values["seconds"] / DAY
    return {"days_low": days * band.low, "days_high": days * band.high}


def explain(estimate: Estimate) -> str:
    """Each value with its formula, the numbers put in, and its source; then what the symbols mean."""
    parts, values, used = [], estimate.values, set[str]()
    for formula in estimate.formulas:
        value = f"{values[formula.symbol]:.4g} {formula.unit}".rstrip()
        numbers = "  ".join(f"{name}={values[name]:.6g}" for name in formula.names)
        meaning = f"  ({formula.meaning})" if formula.meaning else ""
        parts.append(f"{formula.symbol} = {value}{meaning}\n    {formula.text}\n    {numbers}\n    {formula.source}")
        used.update(formula.names)
    legend = [(name, meaning) for name, meaning in estimate.meanings.items() if name in used]
    return "\n\n".join([*parts, table(("symbol", "meaning"), legend)])


def _answer(estimate: Estimate, faster: Optional[Estimate]) -> str:
    """What it takes, in as many digits as are known, by what that is known, and what would be faster."""
    values, case = estimate.values, estimate.case
    band = find_band(estimate) if case.efficiency is None else None
    low, high = (band.low, band.high) if band else (1.0, 1.0)
    per_gpu = values["tokens_per_second"] / values["n"]
    rows = [
        *(_training(estimate, low, high) if case.tokens else ()),
        ("speed", f"{between(per_gpu / high, per_gpu / low)} tokens/s per GPU"),
        ("memory", _verdict(estimate)),
        ("example", example_for(case.model, case.layout)),
        *(_evidence(estimate, band) if band else ()),
        *(_faster(estimate, faster) if faster else ()),
    ]
    return "\n".join(f"{key:<10}{value}" for key, value in rows)


def _verdict(estimate: Estimate) -> str:
    """Whether a GPU's memory suffices, as far as it is known."""
    needed, usable = estimate.values["G"], capacity(estimate.case.hardware)
    if estimate.fits:
        verdict = f"{format_size(usable - needed)} to spare"
    elif memory_is_unknown(estimate):
        kind, *generations = groups(estimate.case)
        most = f"{most_memory(kind, *generations):.2f} times that by the estimate"
        verdict = f"unknown whether it fits; published runs of {NAMES[kind]} ran that took up to {most}"
    else:
        verdict = "does not fit"
    return f"{format_size(needed)} of {format_size(usable)} usable per GPU: {verdict}"


def _faster(estimate: Estimate, other: Estimate) -> list[tuple[str, str]]:
    less, memory = 1 - other.values["T"] / estimate.values["T"], format_size(other.values["G"])
    return [("faster", f"{other.case.layout.options()}: {less:.0%} less time, {memory} per GPU")]


def _training(estimate: Estimate, low: float, high: float) -> list[tuple[str, str]]:
    days, hours = estimate.values["seconds"] / DAY, estimate.values["gpu_hours"]
    size = checkpoint_size(estimate)
    tokens = f"{format_amount(estimate.case.tokens)} tokens"
    cost = f"{between(hours * low, hours * high)} GPU hours; a checkpoint has {format_size(size)}"
    time, unit = (days, "days") if days * high >= 2 else (24 * days, "hours")
    centre = "" if low == high else f" (estimated {between(time, time)})"
    return [("training", f"{between(time * low, time * high)} {unit}{centre} for {tokens}: {cost}")]


def format_amount(number: float) -> str:
    """As in: 300 billion."""
    scale, word = next(((scale, word) for scale, word in _SCALES if number >= scale), (1, ""))
    return f"{number / scale:,.4g} {word}".rstrip()


def checkpoint_size(estimate: Estimate) -> float:
    """Values, means and variances in fp32."""
    return 12 * estimate.values["N"]


def _evidence(estimate: Estimate, band: Band) -> list[tuple[str, str]]:
    run, gpu = band.nearest, estimate.case.hardware.gpu
    kind, generation = run.group
    own = any(one.group == (kind, generation_of(gpu)) for one in published_runs())
    other = "" if generation_of(gpu) == generation else f"; {'few' if own else 'none'} on {gpu.name}"
    layout = estimate.case.layout
    why = "; none with a pipeline" if layout.is_fsdp and layout.pp > 1 else ""
    why += f"; none of {layout.strategy} that splits layers" if splits_beside_zero(layout) else ""
    longest = longest_sequence(kind, generation)
    larger = size_of(estimate.case.model) > largest_model(kind, generation)
    why += "; none of a model as large" if larger else ""
    why += f"; none of more than {longest:,} tokens" if estimate.case.model.sequence > longest else ""
    fewest = fewest_tokens(kind, generation)
    why += (
        f"; none of fewer than {fewest:,.0f} tokens at once on a GPU" if tokens_at_once(estimate.case) < fewest else ""
    )
    why += f"; {SELDOM[kind]}" if kind in SELDOM else ""
    count = f"{band.runs} published runs of {NAMES[kind]} on {generation}{other}{why}"
    figures = f"{run.published:,g} {run.unit}, estimated {float(f'{run.estimated():.3g}'):,g}"
    near = f"{run.model} on {pluralize(run.case.hardware.count, 'GPU')}, {figures}"
    return [
        ("error", f"{band.low:.2f} to {band.high:.2f} times the estimate: by {count}"),
        ("nearest", f"{near} ({run.source})"),
    ]


def between(low: float, high: float) -> str:
    """Two numbers in two digits, or one where they are the same."""
    first, second = (f"{float(f'{number:.2g}'):,.10g}" for number in (low, high))
    return first if first == second else f"{first} to {second}"


def days_table(tried: Sequence[Estimate], days: float) -> str:
    """GPUs against days, from numbers that are not hopeless."""
    rows = []
    for one in tried:
        band, time = find_band(one), one.values["seconds"] / DAY
        if time > HOPELESS * days and one is not tried[-1]:
            continue
        end = between(time * band.low, time * band.high)
        enough = "enough" if is_enough(one, days) else ""
        rows.append(
            (str(one.case.hardware.count), end, format_size(one.values["G"]), one.case.layout.options(), enough)
        )
    return table(("GPUs", "days", "memory", "layout", ""), rows)


def is_enough(estimate: Estimate, days: float) -> bool:
    """Whether the training ends in time at the slow end of its band."""
    return estimate.values["seconds"] / DAY * find_band(estimate).high <= days


def _head(estimate: Estimate, notes: Sequence[str]) -> str:
    model, hardware, layout = estimate.case.model, estimate.case.hardware, estimate.case.layout
    few = f" ({model.kv_heads} of keys and values)" if model.key_value_heads != model.heads else ""
    wide = f", {'SwiGLU' if model.gated else 'wide layer'} of {model.inner}" if model.gated or model.ffn else ""
    size = f" of {model.head_width}" if model.head_width else ""
    shape = f"{model.layers} layers, hidden size {model.hidden}, {model.heads} heads{size}{few}{wide}"
    ends = f"sequence {model.sequence}, vocabulary {model.vocabulary}" + (
        "" if model.tied else ", with a matrix for each end"
    )
    steps = f"{estimate.values['m']:g} x {layout.micro_batch} per replica"
    parts = f" x cp {layout.cp}" if layout.cp > 1 else ""
    gpus = f"{hardware.count} x {hardware.gpu.name}, {format_size(hardware.gpu.memory * 2**30)} each"
    rows = [
        ("model", f"{estimate.values['N'] / 1e9:.4g} billion parameters: {shape}, {ends}"),
        ("hardware", f"{pluralize(hardware.nodes, 'node')}: {gpus}"),
        ("layout", f"dp {estimate.values['d']:g} x pp {layout.pp} x tp {layout.tp}{parts}: {layout.options()}"),
        ("batch", f"{pluralize(layout.batch, 'sequence')}: {steps}"),
        *(("note", note) for note in notes),
    ]
    return "\n".join(f"{key:<10}{value}" for key, value in rows)


def _memory(estimate: Estimate, blocks: str) -> str:
    usable, host = capacity(estimate.case.hardware), estimate.values["host"]
    bars = _bars(MEMORY, estimate, max(usable, estimate.values["G"]), format_size, blocks)
    unknown = "may fit" if memory_is_unknown(estimate) else "does not fit"
    fits = "fits" if estimate.fits else unknown
    outside = f"; {format_size(host)} in the host's memory" if host else ""
    return (
        f"memory per GPU: {format_size(estimate.values['G'])} of {format_size(usable)} usable: {fits}{outside}\n{bars}"
    )


def _bars(parts: Sequence[Formula], estimate: Estimate, full: float, text: Callable[[float], str], blocks: str) -> str:
    rows = []
    for part in parts:
        value = estimate.values[part.symbol]
        done = round(value / full * BAR_COLUMNS)
        if value:
            bar = blocks[0] * done + blocks[1] * (BAR_COLUMNS - done)
            rows.append((part.symbol, text(value), bar, part.meaning))
    return table(rows[0], rows[1:])


def _result(estimate: Estimate) -> str:
    values = estimate.values
    recomputed = f"; {values['hfu']:.1%} with recomputation" if values["F"] > values["M"] else ""
    rows = [
        ("FLOP", f"{values['F']:.3g} per iteration; {values['hfu'] * values['X'] / 1e12:.0f} TFLOP/s per GPU"),
        ("MFU", f"{values['mfu']:.1%} of the peak{recomputed}"),
        ("rate", f"{values['tokens_per_second']:,.0f} tokens/s"),
    ]
    if estimate.case.tokens:
        rows.append(("energy", f"{values['energy'] / 3.6e9:.3g} MWh of the GPUs at their power limit"))
    return "\n".join(f"{key:<10}{value}" for key, value in rows)


def _ranking(search: Fit) -> str:
    rows: list[tuple[str, ...]] = []
    for one in _distinct(search):
        result = (format_size(one.values["G"]), format_seconds(one.values["T"]), f"{one.values['mfu']:.1%}")
        rows.append((one.case.layout.options(), *result, compare(one, search.ranked[0]) if rows else "best"))
    fit = "fit with a margin" if has_margin(search.ranked[0]) else "may fit, without a margin"
    counted = f"{pluralize(len(search.ranked), 'layout')} {fit}, {len(search.too_large)} do not; best of each kind:"
    reasons = [f"  {reason}" for reason in search.reasons()]
    layouts = table(("layout", "memory", "iteration", "MFU", ""), rows)
    return "\n".join([counted, layouts, "changes of one choice of the best:", *reasons])


def _distinct(search: Optional[Fit]) -> list[Estimate]:
    """The best layouts that split the model in different ways."""
    ways: dict[tuple[int, int, int, str], Estimate] = {}
    for one in search.ranked if search else ():
        layout = one.case.layout
        ways.setdefault((layout.tp, layout.pp, layout.cp, layout.strategy), one)
    return list(ways.values())[:SHOWN]
