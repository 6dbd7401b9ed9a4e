from __future__ import annotations

import runpy
import sys
from types import ModuleType
from typing import Any

import pytest

from ctrain_runtime.payload import PREFLIGHT


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The program's names, without torch."""
    torch: Any = ModuleType("torch")
    torch.distributed = ModuleType("torch.distributed")
    for module in (torch, torch.distributed):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return runpy.run_path(str(PREFLIGHT / "collectives.py"))


@pytest.mark.parametrize(
    ("size", "seconds", "rate", "row"),
    [
        (512, 2e-6, 0.000256, "all-reduce           512.000 B      0.002 ms  256.000 kB/s  256.000 kB/s"),
        (1024, 1e-5, 0.1024, "all-reduce            1.024 kB      0.010 ms  102.400 MB/s  102.400 MB/s"),
        (1 << 28, 1.5, 92.125, "all-reduce          268.435 MB   1500.000 ms   92.125 GB/s   92.125 GB/s"),
    ],
)
def test_each_number_of_the_table_has_a_unit_of_its_size(
    size: int, seconds: float, rate: float, row: str, collectives: dict[str, Any]
) -> None:
    line = {"operation": "all-reduce", "size": size, "seconds": seconds, "algorithm": rate, "bus": rate}
    assert collectives["row"](line) == row
