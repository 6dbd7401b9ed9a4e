"""Imported by Python in the image, as sitecustomize.py: PyTorch computes in float64.

Adagrad and Adam make a whole step of the first gradient of a weight, also of one that is zero but for rounding. In
float32 that shows in losses: after 12 steps at the earliest, when and whether depends on the CPU's instructions. In
float64, rounding is far below the epsilon of the optimizers.
"""

from __future__ import annotations

from typing import Any

import torch

from_numpy = torch.from_numpy


def in_float64(array: Any) -> torch.Tensor:
    tensor = from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor


torch.set_default_dtype(torch.float64)
torch.from_numpy = in_float64
