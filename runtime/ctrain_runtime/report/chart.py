"""Curves as SVG: axes and one line per run, without a library, a script or a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ctrain_runtime.report.html import Html, element, join
from ctrain_runtime.report.series import Point

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 10, 34
COLORS = 8  # in page.css: c0, c1 ...
TICKS = 5
FEW = 4  # runs; of more, values would hide each other
LEAST = 1e-290  # smaller differences are none: floats end there
MANY, MEANS = 100, 50  # points of a curve from which on it gets a running mean, of so many independent ones


@dataclass(frozen=True)
class Line:
    """One run's curve: parts that are not joined. `color` is its number."""

    name: str
    parts: Sequence[Sequence[Point]]
    color: int


def chart(title: str, lines: Sequence[Line], *, from_zero: bool = False) -> Html:
    """The curves over each other, with axes that fit all of them, or that begin at zero."""
    points = [point for line in lines for part in line.parts for point in part]
    if not points:
        return Html("")
    x_axis = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([*(y for _, y in points), *([0.0] if from_zero else [])], HEIGHT - BOTTOM, TOP)
    grid = [
        *(_tick_x(value, x_axis) for value in x_axis.ticks),
        *(_tick_y(value, y_axis) for value in y_axis.ticks),
        element("text", "step", x=WIDTH - RIGHT, y=HEIGHT - 4, text_anchor="end", class_="axis"),
    ]
    few = len(lines) <= FEW
    curves = [_curve(part, line, x_axis, y_axis, with_values=few) for line in lines for part in line.parts]
    size = f"0 0 {WIDTH} {HEIGHT}"
    drawing = element("svg", *grid, *curves, viewBox=size, role="img", aria_label=title)
    return element("figure", element("figcaption", title), drawing, _legend(lines))


class _Axis:
    """Values on a line of the drawing from `begin` to `end`."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        low, high = min(values), max(values)
        if high / 2 - low / 2 < LEAST:  # a flat curve lies in the middle
            margin = abs(low) / 10 if abs(low) > 100 * LEAST else 1.0
            low, high = low - margin, high + margin
        self.low, self._scale, self._begin = low, high / 2 - low / 2, begin
        self._half = (end - begin) / 2
        self.ticks = nice_ticks(low, high)

    def at(self, value: float) -> float:
        """Halves, since the difference of two floats may be too large for one."""
        return round(self._begin + (value / 2 - self.low / 2) / self._scale * 2 * self._half, 1)


def nice_ticks(low: float, high: float) -> list[float]:
    """Some round numbers between two."""
    rough = high / TICKS - low / TICKS
    if not (rough > 0 and math.isfinite(rough)):
        return [low, high]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    if not step or not math.isfinite(low / step) or abs(low / step) > 1e9:  # too close together to tell them apart
        return [low, high]
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _tick_x(value: float, axis: _Axis) -> Html:
    at = axis.at(value)
    line = element("line", x1=at, x2=at, y1=TOP, y2=HEIGHT - BOTTOM, class_="grid")
    return join(line, element("text", short(value), x=at, y=HEIGHT - BOTTOM + 14, text_anchor="middle"))


def _tick_y(value: float, axis: _Axis) -> Html:
    at = axis.at(value)
    line = element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid")
    return join(line, element("text", short(value), x=LEFT - 6, y=at + 4, text_anchor="end"))


def _curve(part: Sequence[Point], line: Line, x_axis: _Axis, y_axis: _Axis, *, with_values: bool) -> Html:
    """Its values; of many, their running mean, and the values thin."""
    color = f"c{line.color % COLORS}"
    if len(part) == 1:
        return element("circle", cx=x_axis.at(part[0][0]), cy=y_axis.at(part[0][1]), r=2.5, class_=f"{color} dot")
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in part]
    if len(places) < MANY:
        return _polyline(places, color)
    values = _polyline(places, f"{color} thin") if with_values else Html("")
    return join(values, _polyline(_running_mean(places), color))


def _polyline(places: Sequence[Point], style: str) -> Html:
    return element("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in places), class_=style)


def _running_mean(places: Sequence[Point]) -> list[Point]:
    width = len(places) // MEANS
    rows = [places[max(0, at - width) : at + width + 1] for at in range(0, len(places), max(1, width // 2))]
    return [(round(fmean(x for x, _ in row), 1), round(fmean(y for _, y in row), 1)) for row in rows]


def _legend(lines: Sequence[Line]) -> Html:
    if len(lines) < 2:
        return Html("")
    names = [element("span", element("i", class_=f"b{line.color % COLORS}"), line.name) for line in lines]
    return element("div", *names, class_="legend")


def short(value: float) -> str:
    """A round number for an axis, as in 0.05, 1,500, 12.5k, 3M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if 1e4 <= abs(value) < 1e15 and abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e4 else f"{value:g}"
