"""The facts of a report in words, as rows of tables: what page and text show alike."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Callable, Optional

from ctrain_runtime.base.digest import short
from ctrain_runtime.base.text import format_duration, format_seconds, format_size, pluralize, significant
from ctrain_runtime.base.time_limit import format_limit
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.report import comparison
from ctrain_runtime.report.comparison import Scale
from ctrain_runtime.report.series import Point
from ctrain_runtime.report.subject import Subject
from ctrain_runtime.run import profiles
from ctrain_runtime.run.record import iso
from ctrain_runtime.store.manifest import read_manifest

Row = tuple[str, ...]
FIRST = ("loss", "accuracy", "per_second")  # parts of keys whose curves come first
MANY_RUNS = 4
AMOUNTS = ("per_second", "seconds", "memory")
NODES_NAMED = 8


def title_of(key: str) -> str:
    return key.replace("_", " ")


def keys_in_order(subjects: Sequence[Subject]) -> list[str]:
    """The keys of all curves: losses, accuracies, rates, the rest."""
    keys = dict.fromkeys(key for subject in subjects for key in subject.metrics.curves)
    return sorted(keys, key=lambda key: next((n for n, part in enumerate(FIRST) if part in key), len(FIRST)))


def is_amount(key: str) -> bool:
    """Whether its curve should show how far it is from nothing: a rate, a time, a size."""
    return any(part in key for part in AMOUNTS)


def tiles(subject: Subject) -> list[Row]:
    """The few numbers to see first."""
    size, curves = subject.run.plan.size, subject.metrics.curves
    rate = comparison.rate(subject)
    loss = curves["loss"].last if "loss" in curves else None
    accuracy = [(key, curve.last) for key, curve in curves.items() if "accuracy" in key and curve.last is not None]
    rows = [
        ("duration", format_duration(subject.seconds) if subject.seconds is not None else ""),
        (f"{subject.run.plan.unit}s on {pluralize(size.nodes, 'node')}", str(size.world_size)),
        ("last step", f"{subject.metrics.last_step:,.0f}" if subject.metrics.last_step is not None else ""),
        ("last loss", significant(loss) if loss is not None else ""),
        *((f"last {title_of(key)}", significant(value or 0.0)) for key, value in accuracy[:2]),
        (f"median {rate_unit(rate[0])}" if rate else "", format_rate(rate[1]) if rate else ""),
    ]
    return [row for row in rows if row[1]]


def rate_unit(key: str) -> str:
    return key.replace("_per_second", "/s")


def format_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else significant(rate)


def format_value(key: str, value: float) -> str:
    """A measured value with the unit that its key names."""
    if "memory" in key:
        return format_size(value)
    if "per_second" in key:
        return f"{format_rate(value)}/s"
    return format_seconds(value) if "seconds" in key else significant(value)


def spread(each: Sequence[Point]) -> str:
    """How far the ranks are from each other, by their mean times."""
    means = [mean for mean, _ in each]
    middle = sorted(means)[(len(means) - 1) // 2]
    slowest = max(range(len(means)), key=means.__getitem__)
    over = means[slowest] / middle - 1 if middle else 0.0
    by = f", {over:.0%} over the median" if over >= 0.005 else ""
    return f"median {format_seconds(middle)}; slowest rank {slowest}: {format_seconds(means[slowest])}{by}"


def notes_on_missing(subject: Subject) -> list[str]:
    """What of metrics.jsonl is not shown, and whether a profile is missing."""
    metrics, notes = subject.metrics, []
    if profiles.are_wanted(subject.run.plan) and not subject.profiles:
        notes.append(f"{subject.name} has {profiles.MISSING}")
    if not metrics.records:
        notes.append(f"{subject.name} has no metrics: its program wrote none to metrics.jsonl")
    if metrics.ignored:
        notes.append(
            f"{subject.name}: {pluralize(metrics.ignored, 'line')} of metrics.jsonl left out: not JSON objects"
        )
    if metrics.more_keys:
        notes.append(f"{subject.name}: its metrics have more keys; the first {len(metrics.curves)} are shown")
    return notes


def attempts(subject: Subject) -> list[Row]:
    """The jobs of a run, its restarts and hangs; none where there is only one job without any."""
    record = subject.record
    jobs = [
        (made.name, _when(made.start or made.submitted), f"{made.outcome} ({made.word})" if made.word else made.outcome)
        for made in record.attempts
    ]
    again = [
        (f"restart {made.attempt}", _when(made.time), f"{made.reason}; from {made.start}") for made in record.restarts
    ]
    hung = [("hang", _when(iso(at)) if at else "", line) for at, line in subject.hangs]
    return [*jobs, *again, *hung] if len(jobs) + len(again) + len(hung) > 1 else []


def expectations(subject: Subject) -> list[Row]:
    """What was estimated beside what was measured."""
    estimate, measured = subject.record.estimate, subject.record.measured
    if not estimate:
        return []
    tokens = measured.tokens_per_second if measured else None
    seconds = estimate.step_seconds
    return [
        (
            "time per step",
            _or_unknown(seconds, format_seconds),
            _or_unknown(tokens and estimate.tokens / tokens, format_seconds),
        ),
        ("tokens/s", _or_unknown(seconds and estimate.tokens / seconds, format_rate), _or_unknown(tokens, format_rate)),
        (
            "memory per rank",
            format_size(sum(estimate.memory.values())),
            _or_unknown(measured.memory if measured else None, format_size),
        ),
    ]


def resources(subject: Subject) -> list[Row]:
    plan, record = subject.run.plan, subject.record
    size = plan.size
    named = ", ".join(record.nodes[:NODES_NAMED]) + (", ..." if len(record.nodes) > NODES_NAMED else "")
    limit = "none" if size.time_limit is None else format_limit(size.time_limit)
    rows = [
        ("site", f"{plan.site} ({plan.scheduler})"),
        ("partition", plan.placement.partition),
        ("nodes", f"{size.nodes}" + (f": {named}" if named else "")),
        ("ranks", f"{size.world_size}, {size.ranks_per_node} per node"),
        ("GPUs", f"{size.gpus_per_node} per node" if size.gpus_per_node else "none"),
        ("cores", f"{size.cores_per_rank} per rank"),
        ("memory", f"{size.memory:,} MB per node" if size.memory else ""),
        ("time limit", limit),
        ("job", ", ".join(made.name for made in record.attempts)),
        ("submitted", _when(record.created)),
        ("world", f"{record.world.state} {record.world.joined}/{record.world.of}" if record.world else ""),
        *(("preflight", line) for line in record.preflight),
        ("staging", plan.staging.reason),
    ]
    return [row for row in rows if row[1]]


def image(subject: Subject) -> list[Row]:
    """The image with its provenance: what it was built from and tested with, as far as its manifest is here."""
    used = subject.run.plan.image
    rows = [
        ("image", f"{used.name} {used.version}".rstrip() + (f" ({used.channel})" if used.channel else "")),
        ("digest", used.digest),
        ("file", used.path),
        ("in place of", used.instead_of),
        *(("layer of yours", f"{layer.path}  {short(layer.digest)}") for layer in used.layers),
        *_provenance(Path(used.path)),
        ("engine", f"{used.engine.name} {used.engine.version}"),
    ]
    return [row for row in rows if row[1]]


def _provenance(path: Path) -> list[Row]:
    try:
        manifest = read_manifest(path.with_suffix(".json"))
    except CtrainError:
        return [("provenance", "no manifest beside its file: built elsewhere, removed, or not readable")]
    passed = sum(test.passed and not test.skipped for test in manifest.tests)
    return [
        ("built", f"{manifest.built}" + (f", definitions at {manifest.revision}" if manifest.revision else "")),
        ("base", f"{manifest.base.reference} {manifest.base.digest}".strip()),
        ("layers", ", ".join(layer.definition for layer in manifest.layers)),
        ("software", ", ".join(f"{name} {version}" for name, version in manifest.software.items())),
        ("tests", f"{passed} of {len(manifest.tests)} passed" if manifest.tests else ""),
        ("signed", "yes" if manifest.signed else "no"),
    ]


def program(subject: Subject) -> list[Row]:
    plan, record = subject.run.plan, subject.record
    variables = plan.environment.variables
    rows = [
        ("command", " ".join(plan.program.command)),
        *((f"parameter {name}", value) for name, value in plan.program.parameters.items()),
        ("directory", plan.program.workdir),
        ("commit", record.revision),
        ("launcher", f"{plan.program.launcher} {plan.program.mpi}".rstrip()),
        ("resumed from", record.resume),
        ("run directory", plan.run_directory),
        *(("mount", str(mount)) for mount in plan.mounts.paths),
        *(("env", f"{name}={value}") for name, value in variables.items()),
        *(("env", f"{name}, as in the shell that started it") for name in plan.environment.passed),
    ]
    return [row for row in rows if row[1]]


def labels(subjects: Sequence[Subject]) -> list[str]:
    """What a curve of each run is called: its name, and the parameters by which it differs from the others."""
    rows = comparison.parameters(subjects)
    own = [", ".join(f"{name} {values[at]}" for name, *values in rows) for at in range(len(subjects))]
    return [f"{subject.name}: {words}" if words else subject.name for subject, words in zip(subjects, own)]


def results(subjects: Sequence[Subject]) -> list[Row]:
    """What came of each run, a row per fact."""
    rows: list[Row] = [
        *comparison.parameters(subjects),
        ("state", *(subject.state for subject in subjects)),
        ("duration", *(_or_unknown(subject.seconds, format_duration) for subject in subjects)),
        ("last step", *(_or_unknown(subject.metrics.last_step, "{:,.0f}".format) for subject in subjects)),
    ]
    for key in keys_in_order(subjects):
        curves = [subject.metrics.curves.get(key) for subject in subjects]
        words = partial(format_value, key)
        rows.append((f"last {title_of(key)}", *(_or_unknown(c.last if c else None, words) for c in curves)))
    return rows


def side_by_side(what: str, subjects: Sequence[Subject], rows: Sequence[Row]) -> tuple[Row, Sequence[Row]]:
    """The head and the rows of a table of facts: a column for each run, or of many runs, a row."""
    names = [subject.name for subject in subjects] if rows else []
    if len(subjects) <= MANY_RUNS:
        return (what, *names), rows
    return ("run", *(row[0] for row in rows)), list(zip(names, *(row[1:] for row in rows)))


def unknown_packages(names: Sequence[str]) -> str:
    return f"packages unknown, since the image is gone or has no list of them: {', '.join(names)}"


def scale_row(scale: Scale) -> Row:
    rate = format_rate(scale.rate)
    return scale.name, str(scale.ranks), f"{rate}/s", f"{scale.speedup:.2f}", f"{scale.efficiency:.0%} of ideal"


def _or_unknown(value: Optional[float], text: Callable[[float], str]) -> str:
    return comparison.NONE if value is None else text(value)


def _when(moment: str) -> str:
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
