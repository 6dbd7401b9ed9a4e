"""benchmarks/train.py with the real image: its plain programs train, and the examples have what it reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from samples.long_mode import LONG

FILE = Path(__file__).parents[2] / "benchmarks" / "train.py"


@pytest.mark.skipif(not LONG, reason="by day, tests/unit/test_train_benchmark.py with what was measured: CTRAIN_LONG=1")
def test_examples_are_measured_beside_plain_programs(pytorch_cpu: Path) -> None:
    cases = ["gpt single", "resnet50 ddp 1"]
    chosen = ["--rounds=1", *(f"--case={name}" for name in cases)]
    done = subprocess.run(
        [sys.executable, FILE, "--json", f"--image={pytorch_cpu}", *chosen], capture_output=True, text=True, timeout=500
    )
    assert done.returncode in (0, 1), done.stderr  # 1: below the limit, which other programs decide here
    summary = json.loads(done.stdout.splitlines()[-1])
    assert [name.removesuffix(" 1") for name in summary["cases"]] == [name.removesuffix(" 1") for name in cases]
    for figures in summary["cases"].values():
        assert all(figures[name] > 0 for name in ("per_second", "mfu", "memory_mb", "plain", "ratio")), figures
        assert figures["checkpoint_ms"] > 0, "one is written half-way"
    assert all(cores > 0 for cores in summary["cores_to_feed"].values())
