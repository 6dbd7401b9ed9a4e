"""Draws what staleness costs: the loss at the end of runs of train.py, and their accuracy, by their mean staleness.

    python plot.py RUN_DIRECTORY... > staleness.svg      runs with --methods async, of several --delay

It writes SVG, and needs Python alone.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM = 480, 240, 52, 40  # pixels; the last two are margins
LAST = 0.2  # share of a run whose median loss is drawn


def point_of(run: Path) -> tuple[float, float, float]:
    """(mean staleness, loss at the end, accuracy) of the asynchronous server."""
    metrics = run / "metrics.jsonl"
    lines = map(json.loads, metrics.read_text().splitlines() if metrics.exists() else ())
    lines = [line for line in lines if line.get("method") == "async"]
    losses = [line["loss"] for line in lines if "loss" in line]
    results = [line for line in lines if "mean_staleness" in line]
    if not losses or not results:
        raise SystemExit(f"{run} has no complete training of an asynchronous server")
    end = losses[-max(1, round(LAST * len(losses))) :]
    return results[0]["mean_staleness"], statistics.median(end), results[0]["accuracy"]


def svg(points: list[tuple[float, float, float]]) -> str:
    right, top = max(x for x, _, _ in points) * 1.05 or 1, max(y for _, y, _ in points) * 1.2

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + x / right * (WIDTH - LEFT - 12), (HEIGHT - BOTTOM) * (1 - y / top) + 6

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'

    left, floor = at(0, 0)
    parts = [f'<path d="M{left:.0f} 6V{floor:.0f}H{WIDTH - 12}" fill="none" stroke="#888"/>']
    for share in (0, 0.5, 1):
        parts.append(text(at(share * right / 1.05, 0)[0], floor + 16, f"{share * right / 1.05:.0f}"))
        parts.append(text(left - 6, at(0, share * top / 1.2)[1] + 4, f"{share * top / 1.2:.2f}", "end"))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(x, y) for x, y, _ in points))
    parts += [f'<polyline points="{line}" fill="none" stroke="#3b7dd8" stroke-width="2"/>']
    for x, y, accuracy in points:
        across, down = at(x, y)
        parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" fill="#3b7dd8"/>')
        parts.append(text(across, down - 8, f"{accuracy:.0%}"))
    parts.append(text((LEFT + WIDTH) / 2, HEIGHT - 6, "mean staleness of a gradient, in updates"))
    parts.append(text(LEFT + 8, 16, f"loss, median of the last {LAST:.0%} of the rounds; labels: accuracy", "start"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return "\n".join([f'{head} font-family="sans-serif" font-size="12" fill="#888">', *parts, "</svg>", ""])


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("pass run directories: plot.py RUN_DIRECTORY... > staleness.svg")
    sys.stdout.write(svg(sorted(point_of(Path(run)) for run in sys.argv[1:])))


if __name__ == "__main__":
    main()
