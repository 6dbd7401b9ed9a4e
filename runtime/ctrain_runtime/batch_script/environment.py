"""Which variables of a script are the program's own."""

from __future__ import annotations

from typing import Optional

from ctrain_runtime.launchers.translate import NOT_PASSED
from ctrain_runtime.plan.environment import IDENTITY, NODE_IDENTITY, VARIABLE, secret_names

_OF_GPUS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def why_left_out(name: str, value: str) -> Optional[tuple[str, bool]]:
    """Why a variable is not in job.yaml, and whether its effect is lost; None if it is in it."""
    if not VARIABLE.fullmatch(name):
        return "not the name of a variable", True
    if name in (*IDENTITY, *NODE_IDENTITY):
        return "ctrain sets it for each rank", False
    if name in _OF_GPUS:
        return "ranks see the GPUs of the job", False
    if name in NOT_PASSED:
        return "the image has its own", True
    if secret_names({name: value}):
        return f"a secret: export it in your shell and pass --env {name}", True
    return None
