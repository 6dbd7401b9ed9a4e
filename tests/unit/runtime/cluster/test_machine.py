from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from ctrain_runtime.cluster import machine


def test_the_models_of_gpus_are_those_that_the_driver_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form of /proc/driver/nvidia/gpus/ID/information, of drivers 470 to 570."""
    for number, model in enumerate(("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "Tesla V100-PCIE-32GB")):
        (tmp_path / str(number)).mkdir()
        text = f"Model: \t\t {model}\nIRQ:   \t\t 135\nGPU UUID: \t GPU-0\n"
        (tmp_path / str(number) / "information").write_text(text)
    monkeypatch.setattr(machine, "_GPUS", tmp_path)
    assert machine.count_gpus() == 3
    for devices, count in (("0,2", 2), ("GPU-0", 0)):  # three have that UUID
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        assert machine.count_visible_gpus() == count
    assert machine.gpu_models() == ("NVIDIA A100-SXM4-80GB", "Tesla V100-PCIE-32GB")


UUIDS = ("GPU-8932f937-d72c", "GPU-8932aaaa-d72c", "GPU-1234f937-d72c", "GPU-99")


@pytest.mark.parametrize(
    ("devices", "count"),
    [
        (None, 4),
        ("0,1,2,3", 4),
        ("2", 1),
        (" 1 , 3 ", 2),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("0,-1,1", 1),
        ("0,4,1", 1),
        ("0,9999999999999999999,1", 1),
        ("0,1,0", 0),
        ("GPU-8932f937-d72c,GPU-1234f937-d72c", 2),
        ("GPU-8932f,GPU-1", 2),
        ("GPU-8932,0", 0),  # two begin so
        ("GPU-77,GPU-99", 0),
        ("GPU-99,GPU-9", 0),  # twice the same
        ("MIG-GPU-8932f937-d72c/1/2", 1),
        ("MIG-1f3c,MIG-2f3c", 1),
        ("\u0661", 0),
    ],
)
def test_the_gpus_that_a_program_sees_as_cuda_counts_them(devices: Optional[str], count: int) -> None:
    assert machine.count_visible(4, devices, UUIDS) == count
    assert machine.count_visible(0, devices) == 0


def test_uuids_that_nothing_names_are_believed() -> None:
    assert machine.count_visible(4, "GPU-1,GPU-2") == 2


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC 13.3\n", "580.95.05"),
        ("NVRM version: something else\n", ""),
        (None, ""),
    ],
)
def test_the_driver_of_this_machine(
    text: Optional[str], version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "DRIVER_FILE", tmp_path / "version")
    if text is not None:
        (tmp_path / "version").write_text(text)
    assert machine.driver_version() == version


@pytest.mark.parametrize(
    ("text", "instructions"),
    [
        ("processor\t: 0\nflags\t\t: fpu sse2 avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n", {"fpu", "sse2", "avx2"}),
        ("processor\t: 0\nFeatures\t: fp asimd\n", set()),  # of ARM
    ],
)
def test_the_instructions_of_the_cpu(
    text: str, instructions: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_CPUS", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(text)
    assert machine.cpu_instructions() == instructions


def test_amd_gpus_are_nodes_of_the_kernel_that_are_no_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the kernel's documentation of amdkfd; not run on such hardware."""
    monkeypatch.setattr(machine, "_AMD_NODES", tmp_path)
    assert machine.count_amd_gpus() == 0
    for number, gpu_id in enumerate(("0", "0", "51140", "45873")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "gpu_id").write_text(f"{gpu_id}\n")
    assert machine.count_amd_gpus() == 2


def test_intel_gpus_without_those_of_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in sysfs, where `device` is a link to the PCI device; not run on such hardware."""
    monkeypatch.setattr(machine, "_DRM", tmp_path / "drm")
    assert machine.count_intel_gpus() == 0
    pci = {"0000:00:02.0": "0x8086", "0000:18:00.0": "0x8086", "0001:6c:00.0": "0x8086", "0000:c1:00.0": "0x10de"}
    for number, (address, vendor) in enumerate(pci.items()):
        device, card = tmp_path / "pci" / address, tmp_path / f"drm/renderD{128 + number}"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        card.mkdir(parents=True)
        (card / "device").symlink_to(device)
    assert machine.count_intel_gpus() == 2


def test_whose_gpus_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def maker(nvidia: int, amd: int, intel: int) -> str:
        for name, count in {"count_gpus": nvidia, "count_amd_gpus": amd, "count_intel_gpus": intel}.items():
            monkeypatch.setattr(machine, name, lambda count=count: count)
        return machine.gpu_maker()

    assert [maker(2, 0, 0), maker(0, 2, 0), maker(0, 0, 2), maker(0, 0, 0)] == ["nvidia", "amd", "intel", "nvidia"]
    assert maker(2, 2, 2) == "nvidia"
