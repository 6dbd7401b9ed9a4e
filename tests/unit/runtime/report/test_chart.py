from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from ctrain_runtime.report.chart import HEIGHT, LEFT, TOP, WIDTH, Line, chart, nice_ticks, short


def drawn(*parts: tuple[tuple[float, float], ...], names: str = "a") -> ET.Element:
    return ET.fromstring(chart("loss", [Line(name, parts, number) for number, name in enumerate(names)]))  # noqa: S314  # ours


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.4, 6.3, [2, 4, 6]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (1e9, 1e9 + 1, [1e9, 1e9 + 1]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == ticks


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.30000000000000004, "0.3"),
        (1500, "1,500"),
        (12_500, "12.5k"),
        (2e9, "2G"),
        (-3e6, "-3M"),
        (1e300, "1e+300"),
    ],
)
def test_numbers_of_axes_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_a_curve_fills_the_axes() -> None:
    (line,) = drawn(((0, 5), (10, 1))).iter("polyline")
    assert line.get("points") == f"{LEFT},{TOP} {WIDTH - 14},{HEIGHT - 34}"


def test_many_points_get_a_running_mean() -> None:
    thin, mean = drawn(tuple((x, x % 2) for x in range(800))).iter("polyline")
    assert len((thin.get("points") or "").split()) == 800
    assert len((mean.get("points") or "").split()) < 120
    heights = {float(point.split(",")[1]) for point in (mean.get("points") or "").split()[5:-5]}
    assert max(heights) - min(heights) < 10


@pytest.mark.parametrize(
    "points",
    [((1, 1),), ((1, 2), (2, 2)), ((0, -1e300), (1e300, 1e300)), ((0, 5e-324), (1, 0.0)), ((1e15, 1), (1e15 + 1, 2))],
)
def test_any_values_are_inside_the_drawing(points: tuple[tuple[float, float], ...]) -> None:
    root = drawn(points)
    places = [p.split(",") for line in root.iter("polyline") for p in (line.get("points") or "").split()]
    places += [[dot.get("cx", ""), dot.get("cy", "")] for dot in root.iter("circle")]
    assert places
    for x, y in places:
        assert 0 <= float(x) <= WIDTH
        assert 0 <= float(y) <= HEIGHT


def test_several_runs_have_a_legend_and_one_has_none() -> None:
    assert [span[0].tail for span in drawn(((1, 1), (2, 2)), names="ab").iter("span")] == ["a", "b"]
    assert not list(drawn(((1, 1), (2, 2))).iter("span"))


def test_without_points_nothing_is_drawn() -> None:
    assert chart("loss", [Line("a", (), 0)]) == ""
