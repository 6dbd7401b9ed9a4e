from __future__ import annotations

from typing import Any

import pytest

from ctrain_runtime.estimate.layout import Layout
from ctrain_runtime.estimate.packaged import example_for
from ctrain_runtime.estimate.presets import PRESETS


@pytest.mark.parametrize(
    ("model", "layout", "example"),
    [
        ("gpt2", {"strategy": "zero2"}, "ctrain run gpt -- strategy=zero2 bf16=true"),
        ("gpt2", {"precision": "fp32"}, "ctrain run gpt -- strategy=ddp"),
        ("gpt2", {}, "own code; with --precision autocast: ctrain run gpt -- strategy=ddp bf16=true"),
        ("gpt2", {"precision": "fp8"}, "no packaged example trains in FP8; Megatron-LM does"),
        ("gpt2", {"tp": 2, "pp": 4}, "ctrain run megatron -- --tp 2 --pp 4"),
        ("gpt2", {"pp": 5, "strategy": "fsdp"}, "ctrain run gpt -- strategy=3d tp=1 pp=5 bf16=true"),
        ("gpt2", {"pp": 5}, "no packaged example splits layers like this; Megatron-LM does"),
        ("gpt2", {"tp": 2, "sequence_parallel": True}, "no packaged example splits layers like this; Megatron-LM does"),
        ("gpt2", {"tp": 2, "pp": 4, "interleave": 2}, "no packaged example splits layers like this; Megatron-LM does"),
        (
            "gpt2",
            {"tp": 2, "strategy": "zero1", "sequence_parallel": True, "recompute": "full"},
            "Megatron-LM; with --strategy fsdp: "
            "ctrain run gpt -- strategy=3d tp=2 pp=1 sequence_parallel=true recompute=true bf16=true",
        ),
        ("gpt2", {"strategy": "zero2", "offload": True}, "ctrain run gpt -- strategy=zero2 offload=cpu bf16=true"),
        ("gpt2", {"strategy": "hsdp"}, "no packaged example shares within nodes alone; torchtitan does"),
        ("gpt2", {"cp": 2}, "no packaged example splits sequences; Megatron-LM does"),
        ("gpt2", {"strategy": "fsdp", "loss": "fused"}, "no packaged example has this loss; llm-foundry does"),
        ("gpt2", {"loss": "fused"}, "no packaged example has this loss; own code"),
        (
            "llama-3-8b",
            {"strategy": "fsdp", "recompute": "selective"},
            "no packaged example recomputes a part of a layer; torchtitan does",
        ),
        ("llama-3-8b", {"strategy": "fsdp"}, "ctrain run gpt -- model=llama strategy=fsdp bf16=true"),
        ("llama-3-8b", {"tp": 8}, "no packaged example splits layers like this; Megatron-LM does"),
        (
            "bloom-176b",
            {"strategy": "fsdp"},
            "no packaged example has this model: they train GPT-2 and Llama; torchtitan does",
        ),
    ],
)
def test_which_example_trains_it(model: str, layout: dict[str, Any], example: str) -> None:
    assert example_for(PRESETS[model], Layout(64, **layout)) == example
