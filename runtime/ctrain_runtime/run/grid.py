"""The combinations of a sweep: every value of each of its parameters with every value of the others."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import UsageError
from ctrain_runtime.run.parameters import parse_setting

Axes = Mapping[str, Sequence[object]]
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_OF_FRACTIONS = re.compile(r"-?[\d.e-]+\.\.-?[\d.e-]+")


def parse_axes(texts: Sequence[str], fixed: Mapping[str, object], declared: Sequence[str] = ()) -> Axes:
    """The values of each parameter of --sweep NAME=VALUE,VALUE or NAME=FIRST..LAST; `fixed` are those of --set. Raises
    UsageError."""
    axes: dict[str, Sequence[object]] = {}
    for text in texts:
        name, values = parse_setting(text, "--sweep")
        if name in axes:
            raise UsageError(f"--sweep {name} is given twice", f"Give all of its values at once: --sweep {text},...")
        if name in fixed:
            raise UsageError(f"{name} is in --set and in --sweep", "Leave out one of them")
        if declared and name not in declared:
            raise UsageError(f"--sweep {name}: the job has no such parameter", suggest(name, declared))
        axes[name] = _values(name, values)
    return axes


def _values(name: str, text: str) -> Sequence[object]:
    if bounds := _RANGE.fullmatch(text):
        first, last = int(bounds[1]), int(bounds[2])
        if first > last:
            raise UsageError(f"--sweep {name}={text} has no values", f"Write: --sweep {name}={last}..{first}")
        return range(first, last + 1)
    if _OF_FRACTIONS.fullmatch(text):
        raise UsageError(f"--sweep {name}={text}: FIRST..LAST is for integers", f"As in: --sweep {name}=0.1,0.2,0.4")
    values = text.split(",")
    if "" in values:
        raise UsageError(f"--sweep {name}={text} has an empty value", f"As in: --sweep {name}=0.1,0.01")
    if twice := next((value for value in values if values.count(value) > 1), None):
        raise UsageError(f"--sweep {name}={text} has {twice} twice", "Each combination runs once")
    return values


def combinations(axes: Axes, most: int) -> list[dict[str, str]]:
    """All combinations; the last parameter changes first. Raises UsageError for more than `most`."""
    count = math.prod(len(values) for values in axes.values())
    if count > most:
        shape = " x ".join(f"{len(values)} of {name}" for name, values in axes.items())
        hint = f"Take fewer values, or a search that proposes them (ctrain help api); to submit all: --max-runs {count}"
        raise UsageError(f"the sweep has {count:,} runs ({shape}), more than {most}", hint)
    return [dict(zip(axes, map(str, values))) for values in itertools.product(*axes.values())]
