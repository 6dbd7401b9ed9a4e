from __future__ import annotations

from typing import Any

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.estimate.layout import Layout, check
from ctrain_runtime.estimate.model import Model
from ctrain_runtime.estimate.presets import PRESETS
from samples.estimates import a_hardware

GPT3 = PRESETS["gpt3-175b"]


@pytest.mark.parametrize(
    ("gpus", "layout", "error"),
    [
        (1024, {"tp": 8, "pp": 12}, "1024 GPUs with tp 8 cannot be split into pp 12 stages. "
         "Nearest: --pp 8 or --pp 16"),
        (4, {"tp": 8}, "4 GPUs cannot be split among tp 8. Nearest: --tp 4"),
        (8, {"tp": 7}, "96 heads cannot be split among tp 7. Nearest: --tp 4 or --tp 8"),
        (1, {"tp": 2}, "1 GPU cannot be split among tp 2. Nearest: --tp 1"),
        (40, {"tp": 5}, "96 heads cannot be split among tp 5. Nearest: --tp 4 or --tp 8"),
        (128, {"pp": 128}, "96 layers cannot be split into pp 128 stages. Nearest: --pp 64"),
        (8, {"batch": 100}, "batch 100 is not a multiple of dp 8 x micro batch 1 = 8. "
         "Nearest: --batch 96 or --batch 104"),
        (8, {"batch": 8, "micro_batch": 2}, "batch 8 is not a multiple of dp 8 x micro batch 2 = 16. "
         "Nearest: --batch 16"),
        (8, {"pp": 2, "strategy": "zero2"}, "zero2 cannot be combined with a pipeline (pp 2). "
         "Pass --strategy zero1 or fsdp, or --pp 1"),
        (16, {"pp": 2, "strategy": "hsdp"}, "hsdp cannot be combined with a pipeline (pp 2). "
         "Pass --strategy zero1 or fsdp, or --pp 1"),
        (8, {"strategy": "hsdp"}, "on one node, hsdp is fsdp. Pass --strategy fsdp, or more nodes"),
        (12, {"strategy": "hsdp"}, "12 GPUs with tp 1 do not fill nodes of 8, within which hsdp shares. "
         "Pass full nodes, and a --tp that divides their GPUs"),
        (8, {"cp": 3}, "sequences of 2048 cannot be split among cp 3. Nearest: --cp 2 or --cp 4"),
        (8, {"cp": 2, "strategy": "fsdp"}, "context parallelism is estimated of Megatron-LM: ddp or zero1 in bf16, "
         "with FlashAttention. Pass --strategy zero1, or omit --cp: no other published runs judge it"),
        (8, {"precision": "fp8"}, "FP8 is estimated of Megatron-LM on H100, H200 and GH200: ddp or zero1, with "
         "FlashAttention. Pass --precision bf16: no other published runs judge it"),
        (8, {"interleave": 2}, "--interleave is of a pipeline with the schedule 1f1b. Pass --pp 2 or more, or omit it"),
        (8, {"pp": 2, "interleave": 64}, "96 layers cannot be split into 128 parts. Nearest: --interleave 48"),
        (8, {"batch": 12, "pp": 2, "interleave": 2}, "3 micro batches are not a multiple of pp 2, as --interleave "
         "needs. Nearest: --batch 8 or --batch 16"),
        (8, {"recompute": "selective"}, "FlashAttention keeps no scores that could be recomputed. "
         "Pass --recompute none or full; selective is estimated of FSDP with SwiGLU, too"),
        (8, {"recompute": "selective", "strategy": "fsdp"}, "FlashAttention keeps no scores that could be recomputed. "
         "Pass --recompute none or full; selective is estimated of FSDP with SwiGLU, too"),
        (8, {"loss": "fused", "tp": 8}, "--loss fused: Megatron-LM has a loss of its own, which is estimated. "
         "Omit --loss"),
        (8, {"loss": "fused", "strategy": "zero1", "compiled": True}, "--loss fused: llm.c has a loss of its own, "
         "which is estimated. Omit --loss"),
        (8, {"loss": "parallel", "strategy": "fsdp"}, "--loss parallel shares logits among the ranks of --tp, with "
         "FSDP. Pass --strategy fsdp and --tp, or --loss fused"),
    ],
)  # fmt: skip  # rows, as they are read
def test_what_does_not_divide(gpus: int, layout: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(GPT3, a_hardware(gpus), Layout(**{"batch": gpus, **layout}))
    assert str(refused.value) == error


def test_heads_must_divide_the_hidden_size() -> None:
    with pytest.raises(UsageError, match=r"hidden size 100 is not a multiple of 12 heads. Nearest: --heads 10 or"):
        check(Model(12, 100, 12), a_hardware(1), Layout(1))


def test_options_are_those_to_type() -> None:
    layout = Layout(64, 2, "zero1", offload=True, tp=8, pp=4, recompute="full", sequence_parallel=True)
    shown = "--strategy zero1 --tp 8 --pp 4 --micro-batch 2 --recompute full --offload --sequence-parallel"
    assert layout.options() == shown
    assert Layout(64).options() == "--strategy ddp"
