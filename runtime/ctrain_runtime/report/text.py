"""The report as text, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ctrain_runtime.base import run_files
from ctrain_runtime.base.text import format_duration, one_line, table
from ctrain_runtime.report import comparison, facts
from ctrain_runtime.report.series import Curve, Point
from ctrain_runtime.report.subject import Failure, Subject

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_COLUMNS = 40
RANKS_NAMED = 5  # of the slowest


def text(subjects: Sequence[Subject]) -> str:
    """All that the page has, but for variables and mounts."""
    return "\n\n".join([*(_run(subject) for subject in subjects), *([compare(subjects)] if len(subjects) > 1 else [])])


def compare(subjects: Sequence[Subject]) -> str:
    """What came of several runs, which settings and packages differ, and what more ranks have brought."""
    names = [subject.name for subject in subjects]
    rows = comparison.differing(subjects)
    scales = [facts.scale_row(scale) for scale in comparison.scaling(subjects)]
    changed, unknown = comparison.packages(subjects)
    parts = [
        table(*facts.side_by_side("result", subjects, facts.results(subjects))),
        table(*facts.side_by_side("setting", subjects, rows)) if rows else "no setting differs",
        *([table(("package", *names), changed)] if changed else []),
        *([facts.unknown_packages(unknown)] if unknown else []),
        *([table(("scaling", "ranks", "rate", "speed-up", "efficiency"), scales)] if scales else []),
    ]
    return "\n\n".join(parts)


def _run(subject: Subject) -> str:
    curves = [_curve(subject.metrics.curves[key]) for key in facts.keys_in_order([subject])]
    rows = [
        ("run", subject.name),
        ("state", subject.state),
        *facts.tiles(subject),
        *(("curve" if number == 0 else "", line) for number, line in enumerate(filter(None, curves))),
        *(("note", note) for note in facts.notes_on_missing(subject)),
        *([("ranks", _ranks(subject.metrics.by_rank))] if subject.metrics.by_rank else []),
        *((f"{phase.name}", format_duration(phase.seconds)) for phase in subject.phases),
        *((name, f"{when}  {how}") for name, when, how in facts.attempts(subject)),
        *((f"stacks of {names}", f"in {run_files.STACKS}/") for names, _ in subject.stacks),
        *((f"profile of {names}", f"in {run_files.PROFILES}/") for names, _ in subject.profiles),
        *facts.resources(subject),
        *facts.image(subject),
    ]
    width = max(len(key) for key, _ in rows) + 2
    lines = [f"{key:<{width}}{one_line(value)}" for key, value in rows]
    if subject.failure:
        lines += _failure(subject.failure)
    expected = facts.expectations(subject)
    return "\n".join([*lines, *([table(("", "estimated", "measured"), expected)] if expected else [])])


def _failure(failure: Failure) -> list[str]:
    advice = [f"advice: {failure.advice}"] if failure.advice else []
    shown = [f"  | {one_line(line)}" for line in failure.lines]
    return [failure.reason, *advice, f"last lines of {failure.log}:", *shown]


def _ranks(each: Sequence[Point]) -> str:
    slowest = sorted(range(len(each)), key=lambda rank: -each[rank][0])[:RANKS_NAMED]
    return f"{facts.spread(each)}; slowest: {', '.join(map(str, slowest))}"


def _curve(curve: Curve) -> str:
    """As in: loss  █▆▅▃▂▁  5.91 to 0.17."""
    values = [value for part in curve.parts for _, value in part]
    if not values or curve.last is None or curve.least is None or curve.largest is None:
        return ""
    shown = [values[number * len(values) // SPARK_COLUMNS] for number in range(SPARK_COLUMNS)]
    half = curve.largest / 2 - curve.least / 2
    levels = [round((value / 2 - curve.least / 2) / half * (len(SPARKS) - 1)) if half else 0 for value in shown]
    bad = f", {curve.bad} not finite" if curve.bad else ""
    words = partial(facts.format_value, curve.key)
    line = "".join(SPARKS[level] for level in levels)
    return f"{line}  {facts.title_of(curve.key)}: {words(values[0])} to {words(curve.last)}{bad}"
