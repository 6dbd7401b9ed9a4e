from __future__ import annotations

import math

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.estimate.hardware import GPU_TYPES, find_gpu
from samples.estimates import a_hardware


@pytest.mark.parametrize(
    ("name", "model"),
    [("a100", "A100"), ("nvidia_a100", "A100"), ("NVIDIA H100 80GB HBM3", "H100"), ("a100-40gb", "A100-40GB"),
     ("cas_v100nv_8", "V100"), ("gh200", "GH200")],
)  # fmt: skip
def test_names_of_gpus(name: str, model: str) -> None:
    assert find_gpu(name) == GPU_TYPES[model]


def test_unknown_gpus() -> None:
    with pytest.raises(UsageError, match=r"unknown GPU type 'mi250'. GPU types: V100, A100"):
        find_gpu("mi250")


def test_a_nodes_network_is_shared_by_the_groups_that_cross_it() -> None:
    hardware = a_hardware(16)  # two nodes of 8, each with 192 GB/s
    assert hardware.group_bandwidth(1, 1) == math.inf
    assert hardware.group_bandwidth(8, 8) == 230e9  # NVLink
    assert hardware.group_bandwidth(16, 8) == 192e9  # one group: all adapters
    assert hardware.group_bandwidth(2, 1) == 24e9  # eight groups: an adapter each
