"""examples/selftest finds collective operations that return wrong values; numpy stands in for torch."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SELFTEST = Path(__file__).resolve().parents[2] / "examples" / "selftest"
SIZE = 3


class Array(np.ndarray[Any, Any]):
    """The methods of a tensor that the checks use."""

    def to(self, _device: object) -> Array:
        return self

    def cpu(self) -> Array:
        return self


class Library:
    """Collectives of a rank among SIZE that return what they must, but for `broken`, and without a scatter."""

    name = "stand-in"

    def __init__(self, module: dict[str, Any], rank: int, **broken: Callable[..., Any]) -> None:
        self.rank, self.size = rank, SIZE
        for name, expected in module["expected_results"](rank, SIZE).items():
            if name != "scatter":
                method = name.replace("-", "_")
                setattr(self, method, broken.get(method, lambda _mine, _root, expected=expected: expected))


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    torch = ModuleType("torch")
    torch.__dict__.update(float64=np.float64, equal=np.array_equal)
    torch.__dict__["arange"] = lambda count, dtype: np.arange(count, dtype=dtype).view(Array)
    distributed = ModuleType("torch.distributed")
    distributed.__dict__.update(get_rank=lambda: 1, get_world_size=lambda: SIZE)
    for module in (torch, distributed):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return runpy.run_path(str(SELFTEST / "collectives.py"))


def fail(*_: object) -> None:
    raise RuntimeError("not built with it\nand more")


def say_nothing(*_: object) -> None:
    raise NotImplementedError


def test_a_wrong_value_is_found_in_any_collective(collectives: dict[str, Any]) -> None:
    well = dict.fromkeys(collectives["expected_results"](1, SIZE), "ok") | {"scatter": "-"}
    assert collectives["check"](Library(collectives, 1), None) == well
    received = {  # by rank 1 of 3, whose own numbers are 3, 4, 5
        "all-reduce": ([3, 4, 5], "[9.0, 12.0, 15.0]"),  # no other rank was heard
        "broadcast": ([3, 4, 5], "[6.0, 7.0, 8.0]"),
        "all-gather": ([0, 6, 3], "[0.0, 3.0, 6.0]"),  # all, but not in order
        "reduce-scatter": ([12, 15], "[12.0]"),
        "all-to-all": ([1, 4, 7.5], "[1.0, 4.0, 7.0]"),
    }
    for name, (wrong, right) in received.items():
        values = np.array(wrong, dtype=float).view(Array)
        library = Library(collectives, 1, **{name.replace("-", "_"): lambda *_, values=values: values})
        problem = f"received {[float(value) for value in wrong]}, not {right}"
        assert collectives["check"](library, None) == {**well, name: problem}
    library = Library(collectives, 1, broadcast=fail)
    assert collectives["check"](library, None) == {**well, "broadcast": "RuntimeError: not built with it"}
    library = Library(collectives, 1, broadcast=say_nothing)
    assert collectives["check"](library, None) == {**well, "broadcast": "NotImplementedError: "}
    assert collectives["check"](Library(collectives, 0), None) == {"world": "rank 0 of 3, not 1 of 3"}


@pytest.mark.parametrize("broken", [{}, {"all_to_all": fail}])
def test_a_wrong_value_on_one_rank_fails_the_selftest(
    collectives: dict[str, Any],
    broken: dict[str, Callable[..., Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    parallel, profiler = ModuleType("torch.nn.parallel"), ModuleType("pyinstrument")
    parallel.__dict__["DistributedDataParallel"] = profiler.__dict__["Profiler"] = None
    for module in (ModuleType("torch.nn"), parallel, profiler):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "path", [str(SELFTEST), *sys.path])
    main = runpy.run_path(str(SELFTEST / "train.py"))["main"]
    parts = main.__globals__
    for name in ("collectives", "example"):
        sys.modules.pop(name)
    outcomes = [collectives["check"](Library(collectives, 1, **each), None) for each in ({}, {}, broken)]
    parts["LIBRARIES"] = {"torch": lambda: Library(collectives, 1)}
    parts.update(skip_reason=lambda _: None, gather=lambda _value, _world: outcomes, describe=lambda _: "3 ranks")
    parts.update(begin=lambda: parts["World"](0, SIZE, 0), train=lambda *_: True, Metrics=lambda _: None)
    parts.update(Profiler=Profile, run_dir=lambda: tmp_path)
    assert main() == (1 if broken else 0)
    out = capsys.readouterr().out
    cells = dict(line.split(maxsplit=1) for line in out.splitlines() if line.startswith(("all-reduce ", "all-to-all ")))
    assert cells == {"all-reduce": "ok", "all-to-all": "wrong on 1" if broken else "ok"}
    problem = "FAILED    stand-in: all-to-all: rank 2: RuntimeError: not built with it\n"
    assert (problem in out) == bool(broken)
    assert out.splitlines()[-1] == ("FAILED" if broken else "passed")


class Profile:
    """Of pyinstrument, what the program uses."""

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def output_html(self) -> str:
        return "<html>"

    def output_text(self, **_: bool) -> str:
        return "profiled"
