"""Losses that the examples had when their golden file was written.

What changes all ranks and strategies alike (seed, first weights, learning rate, order of the data) shows in no
comparison of one with another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "losses"
# Relative. The image is the same, but CPUs with other instructions add in another order. Between AVX-512 and SSE 4, the
# losses that are kept differ by 2e-5 at most (Keras' by 2e-4, without oneDNN); what comes later can differ by more, so
# only first steps are kept. One of the changes above shows in them as 1e-2 and more.
BOUND = 1e-3


def check_losses(name: str, losses: Sequence[float]) -> None:
    """Compares with the golden file of an example; with CTRAIN_WRITE_LOSSES=1, writes it."""
    path = GOLDEN / f"{name}.json"
    if os.environ.get("CTRAIN_WRITE_LOSSES"):
        path.write_text(json.dumps([float(f"{loss:.6g}") for loss in losses]) + "\n")
    golden = json.loads(path.read_text())
    assert list(losses) == pytest.approx(golden, rel=BOUND), f"if that is meant, CTRAIN_WRITE_LOSSES=1 writes {path}"
