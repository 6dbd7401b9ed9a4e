"""The report as one HTML page: no script, no network, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ctrain_runtime.base.text import format_duration, format_seconds, pluralize
from ctrain_runtime.report import chart, comparison, facts
from ctrain_runtime.report.chart import Line
from ctrain_runtime.report.html import Html, element, join
from ctrain_runtime.report.subject import Failure, Subject
from ctrain_runtime.report.timeline import Phase

STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # whatever a text might be taken for: nothing is loaded or run
MAX_BARS = 16  # of ranks: the slowest
ROW, NAME, BARS_END, BARS_WIDTH = 26, 190, 850, 1000  # of a chart of bars


def page(subjects: Sequence[Subject]) -> str:
    """The page about one run, or about several."""
    title = subjects[0].name if len(subjects) == 1 else f"{pluralize(len(subjects), 'run')} compared"
    parts = [_comparison(subjects)] if len(subjects) > 1 else []
    runs = [_run(subject, is_alone=len(subjects) == 1) for subject in subjects]
    parts += runs if len(runs) <= facts.MANY_RUNS else map(_folded, subjects, facts.labels(subjects), runs)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} - ctrain report"),
        element("style", Html(STYLE.read_text(encoding="utf-8"))),
    )
    footer = element("footer", "Made by ctrain report, of the files in each run's directory. Empty is unknown.")
    return Html("<!DOCTYPE html>\n") + element("html", head, element("body", *parts, footer), lang="en")


def _folded(subject: Subject, label: str, run: Html) -> Html:
    """One of many runs: a line, which opens."""
    return element("details", element("summary", label, " ", _state(subject)), run, class_="run")


def _state(subject: Subject) -> Html:
    ended = subject.record.exit
    mood = "open" if not ended else "good" if ended.code == 0 else "bad"
    return element("span", subject.state, class_=f"state {mood}")


def _run(subject: Subject, *, is_alone: bool) -> Html:
    """All about one run; its curves only if they are not among those of several."""
    parts = [
        element("h1", subject.name),
        element("div", _state(subject), class_="line"),
        element("div", *(_tile(name, value) for name, value in facts.tiles(subject)), class_="tiles"),
    ]
    if subject.failure:
        parts.append(_failure(subject.failure))
    parts.append(_texts("Stacks of ranks that hung", subject.stacks))
    if is_alone:
        parts.append(_curves([subject]))
    parts += [_ranks(subject), _texts("Profiles", subject.profiles), _timeline(subject.phases)]
    tables = [
        _table("Jobs, restarts and hangs", ("", "when", "how it ended, or why"), facts.attempts(subject)),
        _table("Estimated and measured", ("", "estimated", "measured"), facts.expectations(subject)),
        _table("Resources", (), facts.resources(subject)),
        _table("Image", (), facts.image(subject)),
        _table("Program and environment", (), facts.program(subject)),
    ]
    more = tables if is_alone else [element("details", element("summary", f"More of {subject.name}"), *tables)]
    return element("section", *parts, *more)


def _tile(name: str, value: str) -> Html:
    return element("div", element("b", value), element("span", name), class_="tile")


def _failure(failure: Failure) -> Html:
    advice = [element("p", f"Advice: {failure.advice}")] if failure.advice else []
    lines = []
    if failure.lines:
        lines = [element("div", f"Last lines of {failure.log}", class_="dim"), element("pre", "\n".join(failure.lines))]
    reason = element("p", failure.reason, class_="bad")
    return join(element("h2", "Why it ended"), element("div", reason, *advice, *lines, class_="card"))


def _texts(title: str, texts: Sequence[tuple[str, str]]) -> Html:
    if not texts:
        return Html("")
    each = [element("details", element("summary", names), element("pre", text)) for names, text in texts]
    return join(element("h2", title), element("div", *each, class_="card"))


def _curves(subjects: Sequence[Subject]) -> Html:
    """The curves of all runs over each other, one chart per key."""
    charts, names = [], facts.labels(subjects)
    for key in facts.keys_in_order(subjects):
        lines, notes = [], []
        for number, subject in enumerate(subjects):
            curve = subject.metrics.curves.get(key)
            if curve and curve.parts:
                lines.append(Line(names[number], curve.parts, number))
            if curve and curve.bad:
                who = f"{subject.name}: " if len(subjects) > 1 else ""
                notes.append(
                    f"{who}{curve.bad} of {curve.count} values are not finite, from step {curve.bad_from:g} on"
                )
        drawn = chart.chart(facts.title_of(key), lines, from_zero=facts.is_amount(key)) or element(
            "figure", element("figcaption", facts.title_of(key))
        )
        charts.append(
            join(drawn) if not notes else element("div", drawn, *(element("p", n, class_="bad") for n in notes))
        )
    left_out = [element("p", note, class_="dim") for subject in subjects for note in facts.notes_on_missing(subject)]
    return join(element("h2", "Curves"), element("div", *charts, class_="charts"), *left_out)


def _ranks(subject: Subject) -> Html:
    """The time of a step by rank: the mean, and thinner the largest."""
    each = subject.metrics.by_rank
    if not each:
        return Html("")
    most = max(largest for _, largest in each) or 1.0
    slowest = sorted(enumerate(each), key=lambda pair: -pair[1][0])[:MAX_BARS]
    bars = []
    for place, (rank, (mean, largest)) in enumerate(sorted(slowest)):
        bars += [
            _label(f"rank {rank}", place),
            _bar(place, 0, _share(largest, most), "thin c0"),
            _bar(place, 0, _share(mean, most), "c0"),
            _value(f"{format_seconds(mean)}, at most {format_seconds(largest)}", place),
        ]
    caption = facts.spread(each) + (f"; the {len(slowest)} slowest are drawn" if len(slowest) < len(each) else "")
    return join(element("h2", "Step times by rank"), _bars(caption, bars, len(slowest)))


def _timeline(phases: Sequence[Phase]) -> Html:
    if not phases:
        return Html("")
    begin, whole = phases[0].begin, max(phases[-1].end - phases[0].begin, 1e-9)
    bars = []
    for place, phase in enumerate(phases):
        width = max(1.5, _share(phase.seconds, whole))
        bars += [
            _label(phase.name, place),
            _bar(place, _share(phase.begin - begin, whole), width, f"c{place % chart.COLORS}"),
            _value(format_duration(phase.seconds), place),
        ]
    caption = f"{format_duration(whole)} from the submission"
    return join(element("h2", "Timeline"), _bars(caption, bars, len(phases)))


def _share(value: float, whole: float) -> float:
    return round((BARS_END - NAME) * value / whole, 1)


def _label(text: str, place: int) -> Html:
    return element("text", text, x=NAME - 10, y=place * ROW + 16, text_anchor="end")


def _value(text: str, place: int) -> Html:
    return element("text", text, x=BARS_END + 8, y=place * ROW + 16)


def _bar(place: int, begin: float, width: float, style: str) -> Html:
    return element("rect", x=NAME + begin, y=place * ROW + 5, width=width, height=14, class_=f"bar {style}")


def _bars(caption: str, bars: Iterable[Html], rows: int) -> Html:
    drawing = element("svg", *bars, viewBox=f"0 0 {BARS_WIDTH} {rows * ROW}", role="img", aria_label=caption)
    return element("figure", element("figcaption", caption), drawing, class_="wide")


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    if not rows:
        return Html("")
    top = [element("tr", *(element("th", cell) for cell in head))] if head else []
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    return join(element("h2", title), element("div", element("table", *top, *body), class_="card scroll"))


def _comparison(subjects: Sequence[Subject]) -> Html:
    names = [subject.name for subject in subjects]
    changed, unknown = comparison.packages(subjects)
    notes = [element("p", facts.unknown_packages(unknown), class_="dim")] if unknown else []
    scales = [facts.scale_row(scale) for scale in comparison.scaling(subjects)]
    return join(
        element("h1", f"{pluralize(len(subjects), 'run')} compared"),
        _curves(subjects),
        _table("Results", *facts.side_by_side("", subjects, facts.results(subjects))),
        _table("Settings that differ", *facts.side_by_side("", subjects, comparison.differing(subjects))),
        _table("Packages that differ", ("", *names), changed),
        *notes,
        _table("Scaling", ("", "ranks", "rate", "speed-up", "efficiency"), scales),
    )
