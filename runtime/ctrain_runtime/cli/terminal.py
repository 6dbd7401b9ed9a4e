"""What a person sees of a run: rank 0's own output, a progress bar below it on a terminal, and ctrain's few lines."""

from __future__ import annotations

import shutil
import time
from typing import Any, Optional, TextIO

from ctrain_runtime.schedulers.handle import Status
from ctrain_runtime.text import format_duration

WIDTH = 20


class Terminal:
    """A View (run.session) that writes to `out`. The bar is drawn only on a terminal, and only from metrics.jsonl."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._bar = ""
        self._drawn = False
        self._at_line_start = True
        self._said = ""
        self._begin: Optional[tuple[float, int]] = None  # (time, step) of the first record, for the ETA
        self.step: Optional[int] = None

    def say(self, text: str) -> None:
        """A line of ctrain's own."""
        self._erase()
        if not self._at_line_start:
            self._out.write("\n")
        self._out.write(text + "\n")
        self._at_line_start = True
        self._draw()

    def started(self, name: str) -> None:
        self._name = name

    def status(self, status: Status) -> None:
        if status.phase == "ended":
            return
        why = f" ({status.detail})" if status.detail not in ("", "None") else ""  # Slurm has no reason at first
        word = "started" if status.phase == "running" else f"waits in the queue{why}"
        text = status.detail if status.phase == "running" and status.detail else f"{self._name} {word}"
        if text != self._said:
            self._said = text
            self.say(text)

    def output(self, text: str) -> None:
        if text:
            self._erase()
            self._out.write(text)
            self._at_line_start = text.endswith("\n")
            self._draw()

    def metrics(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            if isinstance(record.get("step"), int):
                self.step = record["step"]
                self._begin = self._begin or (time.monotonic(), record["step"])
                if "loss" in record:
                    self._bar = progress(record, self._left(record))
        if records:
            self._erase()
            self._draw()

    def cancelling(self, name: str) -> None:
        self.say(f"cancelling {name} ...")

    def close(self) -> None:
        """Take the bar away and end an unfinished line."""
        self._erase()
        self._bar = ""
        if not self._at_line_start:
            self._out.write("\n")
            self._at_line_start = True
        self._out.flush()

    def _left(self, record: dict[str, Any]) -> Optional[float]:
        """Seconds to go at the pace so far."""
        if not self._begin or not isinstance(record.get("steps"), int) or record["step"] <= self._begin[1]:
            return None
        pace = (time.monotonic() - self._begin[0]) / (record["step"] - self._begin[1])
        return float(pace * (record["steps"] - record["step"]))

    def _erase(self) -> None:
        if self._drawn:  # without a bar the line is the program's own
            self._out.write("\r\033[K")
            self._drawn = False

    def _draw(self) -> None:
        if self._live and self._bar and self._at_line_start:
            self._out.write(self._bar[: shutil.get_terminal_size().columns - 1])  # a wrapped line can't be erased
            self._drawn = True
        self._out.flush()


def progress(record: dict[str, Any], left: Optional[float]) -> str:
    """One line for a record of metrics.jsonl; what the record lacks is left out."""
    parts = []
    if "epoch" in record and "epochs" in record:
        parts.append(f"epoch {record['epoch']}/{record['epochs']}")
    if isinstance(record.get("steps"), int) and record["steps"] > 0:
        full = min(WIDTH, WIDTH * record["step"] // record["steps"])
        parts.append("█" * full + "░" * (WIDTH - full))
        parts.append(f"{record['step']}/{record['steps']}")
    if isinstance(record.get("loss"), (int, float)):
        parts.append(f"loss {record['loss']:.2f}")
    if isinstance(record.get("images_per_second"), (int, float)):
        parts.append(f"{record['images_per_second']:,.0f} images/s")
    if left:
        parts.append(f"ETA {format_duration(left)}")
    return "  ".join(parts)
