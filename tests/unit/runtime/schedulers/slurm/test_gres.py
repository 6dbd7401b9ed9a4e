from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.schedulers.slurm.gres import parse_gres, parse_tres


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("(null)", (0, "")),
        ("", (0, "")),
        ("gpu:8", (8, "")),
        ("gpu:a100:8", (8, "a100")),
        ("gpu:a100:8(S:0-1)", (8, "a100")),
        ("gpu:a100:8(S:0,2)", (8, "a100")),
        ("gpu:a100:4(S:0),gpu:a100:4(S:1)", (8, "a100")),
        ("gpu:v100:2,nvme:1", (2, "v100")),
        ("nvme:1,gpu:2080ti:2", (2, "2080ti")),
        ("craynetwork:4", (0, "")),
        ("gpu:a100:2(IDX:0-1)", (2, "a100")),
        ("gres:gpu:2", (2, "")),
        ("gres/gpu:2", (2, "")),
        ("gres/gpu:v100:2", (2, "v100")),
        ("gres/nvme:1,gres/gpu:2", (2, "")),
        ("gres/gpu", (1, "")),
        ("cpu:8", (0, "")),
    ],
)
def test_gpus_of_gres(text: str, gpus: tuple[int, str]) -> None:
    assert parse_gres(text) == gpus


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("cpu=2,mem=16000M,node=2,billing=2,gres/gpu=16", 16),
        ("cpu=2,gres/gpu=4,gres/gpu:a100=4", 4),
        ("gres/gpu:a100=4,cpu=2,gres/gpu=4", 4),
        ("cpu=2,gres/gpu:a100=4,gres/gpu:v100=2", 6),
        ("cpu=2,node=2", 0),
        ("(null)", 0),
    ],
)
def test_gpus_of_tres(text: str, gpus: int) -> None:
    assert parse_tres(text) == gpus


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    assert parse_gres(text)[0] >= 0
    assert parse_tres(text) >= 0
