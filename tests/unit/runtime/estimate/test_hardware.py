from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.errors import UsageError
from ctrain_runtime.estimate.hardware import GPU_TYPES, find_gpus
from samples.estimates import a_hardware


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("nvidia_a100_80gb_pcie", "A100-PCIe-80GB"),
        ("a100-40gb", "A100-SXM4-40GB A100-PCIe-40GB"),
        ("a100", "A100-SXM4-40GB A100-PCIe-40GB A100-SXM4-80GB A100-PCIe-80GB"),
        ("tesla_v100-sxm2-32gb", "V100-SXM2-32GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("v100s", "V100S-PCIe-32GB"),
        ("Tesla V100S-PCIE-32GB", "V100S-PCIe-32GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("h100_nvl", "H100-NVL-94GB"),
        ("h100", "H100-SXM5-80GB H100-PCIe-80GB H100-NVL-94GB"),
        ("NVIDIA H200 NVL", "H200-NVL-141GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB GH200-144GB"),  # the CPU's memory
        ("NVIDIA GH200 120GB", "GH200-96GB GH200-144GB"),  # the same
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA A100-SXM-64GB", "A100-64GB"),
        ("NVIDIA L40S", "L40S-48GB"),
        ("a30", "A30-24GB"),
        ("nvidia_b200", "B200-180GB"),
    ],
)
def test_a_name_means_no_more_than_it_says(name: str, meant: str) -> None:
    """In the spelling of schedulers and drivers; of several types, the one with the least memory first."""
    assert " ".join(gpu.name for gpu in find_gpus(name)) == meant


@pytest.mark.parametrize("name", GPU_TYPES)
def test_each_type_is_found_by_its_name(name: str) -> None:
    assert find_gpus(name) == (GPU_TYPES[name],) and GPU_TYPES[name].memory == find_gpus(name.lower())[0].memory


def test_forms_of_a_model_compute_at_other_rates() -> None:
    """Peaks of NVIDIA's data sheets, without sparsity."""
    names = ("NVIDIA H100 80GB HBM3", "H100 PCIe", "H100 NVL", "V100-SXM2-16GB", "V100-PCIE-16GB", "V100S-PCIE-32GB")
    assert [find_gpus(name)[0].bf16 for name in names] == [989, 756, 835, 125, 112, 130]


@pytest.mark.parametrize(
    ("name", "meant", "memory", "share"),
    [
        ("a100_1g.5gb", "A100-SXM4-40GB MIG 1g.5gb", 5, 1 / 7),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100-SXM4-40GB MIG 1g.5gb", 5, 1 / 7),
        ("nvidia_a100_80gb_pcie_1g.10gb", "A100-PCIe-80GB MIG 1g.10gb", 10, 1 / 7),
        ("a100_3g.20gb", "A100-SXM4-40GB MIG 3g.20gb", 20, 3 / 7),
        ("a100_3g.40gb", "A100-SXM4-80GB MIG 3g.40gb", 40, 3 / 7),
        ("nvidia_a100_1c.3g.40gb", "A100-SXM4-80GB MIG 3g.40gb", 40, 3 / 7),
        ("h100_7g.80gb", "H100-SXM5-80GB MIG 7g.80gb", 80, 1),
        ("a30_2g.12gb", "A30-24GB MIG 2g.12gb", 12, 2 / 4),
    ],
)
def test_a_mig_instance_is_a_part_of_a_gpu(name: str, meant: str, memory: int, share: float) -> None:
    gpu, whole = find_gpus(name)[0], GPU_TYPES[meant.partition(" ")[0]]
    assert (gpu.name, gpu.memory) == (meant, memory)
    assert gpu.bf16 == pytest.approx(whole.bf16 * share) and gpu.bandwidth <= whole.bandwidth
    assert gpu.link < whole.link and "link" in gpu.unverified, "instances have no NVLink"


@given(st.from_regex(r"(nvidia_)?(a100|A30|h100|gh200|V100S?)[-_ a-z0-9.]{0,20}", fullmatch=True) | st.text())
def test_any_name_is_a_gpu_or_refused_and_never_more_than_the_largest_of_its_model(name: str) -> None:
    try:
        types = find_gpus(name)
    except UsageError:
        return
    assert types and all(0 <= gpu.memory <= 180 and 0 < gpu.bf16 <= 2250 for gpu in types)
    assert list(types) == sorted(types, key=lambda gpu: gpu.memory)


def test_unknown_gpus() -> None:
    with pytest.raises(UsageError, match=r"unknown GPU type 'mi250'. GPU types: V100, A100, H100, H200"):
        find_gpus("mi250")


def test_a_nodes_network_is_shared_by_the_groups_that_cross_it() -> None:
    hardware = a_hardware(16)  # two nodes of 8, each with 192 GB/s
    assert hardware.group_bandwidth(1, 1) == math.inf
    assert hardware.group_bandwidth(8, 8) == 230e9  # NVLink
    assert hardware.group_bandwidth(16, 8) == 192e9  # one group: all adapters
    assert hardware.group_bandwidth(2, 1) == 24e9  # eight groups: an adapter each
