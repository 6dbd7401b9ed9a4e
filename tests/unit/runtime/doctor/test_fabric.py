"""The files of /sys/class/infiniband as the kernel documents them; not seen on such a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.cluster import machine
from ctrain_runtime.doctor import Finding, fabric


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("_INFINIBAND", "_CXI", "_VERBS", "_MODULES"):
        monkeypatch.setattr(fabric, name, tmp_path / name)
    monkeypatch.setattr(machine, "count_gpus", lambda: 8)
    return tmp_path


def add_port(files: Path, device: str, state: str, port: int = 1) -> None:
    directory = files / "_INFINIBAND" / device / "ports" / str(port)
    directory.mkdir(parents=True)
    (directory / "state").write_text(f"{state}\n")
    (directory / "rate").write_text("200 Gb/sec (4X HDR)\n")


def add_verbs(files: Path) -> None:
    (files / "_VERBS").mkdir()
    (files / "_VERBS/uverbs0").touch()
    (files / "_MODULES/nvidia_peermem").mkdir(parents=True)


def check() -> dict[str, Finding]:
    return {finding.subject: finding for finding in fabric.check_fabric()}


def test_no_adapter() -> None:
    assert check()["fabric"].text == "no InfiniBand, RoCE or Slingshot adapter: ranks of several nodes use TCP"


def test_adapters_that_work(files: Path) -> None:
    add_port(files, "mlx5_0", "4: ACTIVE")
    add_port(files, "mlx5_1", "1: DOWN")
    add_verbs(files)
    (finding,) = check().values()
    expected = "mlx5_0 ACTIVE 200 Gb/sec (4X HDR), mlx5_1 DOWN 200 Gb/sec (4X HDR)"
    assert (finding.level, finding.text) == ("ok", expected)


def test_of_two_ports_the_active_one_counts(files: Path) -> None:
    add_port(files, "mlx5_0", "1: DOWN", 1)
    add_port(files, "mlx5_0", "4: ACTIVE", 2)
    assert fabric.adapters() == {"mlx5_0": "ACTIVE 200 Gb/sec (4X HDR)"}


def test_no_active_port(files: Path) -> None:
    add_port(files, "mlx5_0", "2: INIT")
    add_verbs(files)
    (finding,) = check().values()
    assert (finding.level, finding.text) == ("fail", "no port is active: mlx5_0 INIT 200 Gb/sec (4X HDR)")


def test_devices_that_the_user_cannot_open(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_port(files, "mlx5_0", "4: ACTIVE")
    assert check()["verbs"].level == "fail"  # no module ib_uverbs
    add_verbs(files)
    assert "verbs" not in check()
    monkeypatch.setattr("os.access", lambda *_: False)
    assert (check()["verbs"].level, "chmod 666" in check()["verbs"].hint) == ("fail", True)


def test_adapters_that_cannot_read_gpu_memory(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_port(files, "mlx5_0", "4: ACTIVE")
    add_verbs(files)
    (files / "_MODULES/nvidia_peermem").rmdir()
    assert (check()["peermem"].level, check()["peermem"].hint) == (
        "warn",
        "Ask the administrators to run: modprobe nvidia_peermem",
    )
    for kernel, module, warns in (
        ("6.8.0-45-generic", "NVIDIA UNIX Open Kernel Module for x86_64  570.124.06", False),  # by DMA-BUF
        ("5.4.0-200-generic", "NVIDIA UNIX Open Kernel Module for x86_64  570.124.06", True),
        ("6.8.0-45-generic", "NVIDIA UNIX x86_64 Kernel Module  570.124.06", True),
    ):
        monkeypatch.setattr("platform.release", lambda kernel=kernel: kernel)
        monkeypatch.setattr(machine, "driver_text", lambda module=module: f"NVRM version: {module}\n")
        assert ("peermem" in check()) is warns
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    assert "peermem" not in check()


def test_slingshot(files: Path) -> None:
    (files / "_CXI/cxi0").mkdir(parents=True)
    assert check() == {"fabric": Finding("fabric", "ok", "cxi0 present")}
    for device, file, state in (("cxi0", "port/link", "down"), ("cxi1", "port/0/link/state", "down")):
        path = files / "_CXI" / device / "device" / file
        path.parent.mkdir(parents=True)
        path.write_text(f"{state}\n")
    assert (check()["fabric"].level, check()["fabric"].text) == (
        "fail",
        "no port is active: cxi0 link down, cxi1 link down",
    )
    path.write_text("up\n")
    assert check() == {"fabric": Finding("fabric", "ok", "cxi0 link down, cxi1 link up")}
