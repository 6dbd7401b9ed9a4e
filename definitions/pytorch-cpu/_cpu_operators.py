"""Declares the two operators that torchvision expects even where its compiled library can't be loaded.

torchvision's wheel from the package index is built for CUDA. Beside a CPU build of torch its library
does not load. Models, transforms and data sets do without, but the import of torchvision registers
output shapes for these two operators in any case.
"""

from __future__ import annotations

import torch

from . import extension

if not extension._has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
