from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ctrain_runtime.payload.preflight import node_checks
from ctrain_runtime.payload.preflight.node_checks import (
    cores_near,
    fast_adapters,
    gpu_problems,
    matches,
    own_address,
    read_gpus,
)

# As nvidia-smi prints GPU_QUERY with --format=csv,noheader,nounits; not run here.
HEALTHY = "0, 3, 81559, 0, Not Active, Not Active\n1, 612, 81559, 0, Not Active, Not Active\n"


@pytest.mark.parametrize(
    ("interface", "wanted", "backend", "is_it"),
    [
        ("eth0", "eth0", "gloo", True),
        ("eth01", "eth0", "gloo", False),
        ("ib0", "eth0,ib0", "gloo", True),
        ("eth0", "eth", "nccl", True),
        ("hsn3", "ib,hsn", "nccl", True),
        ("lo", "^docker,lo", "nccl", False),
        ("eth0", "^docker,lo", "nccl", True),
        ("eth0", "=eth0", "nccl", True),
        ("eth01", "=eth0", "nccl", False),
        ("eth0", "^=eth0", "nccl", False),
        ("eth01", "^=eth0", "nccl", True),
    ],
)
def test_lists_of_interfaces(interface: str, wanted: str, backend: str, is_it: bool) -> None:
    assert matches(interface, wanted, backend) == is_it


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_address_of_the_interface_that_a_variable_names(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = node_checks.VARIABLES[backend]
    monkeypatch.setenv(variable, "lo")
    assert own_address(backend, "10.0.0.7") == ("127.0.0.1", f"interface lo of {variable}")
    monkeypatch.setenv(variable, "ib7")
    with pytest.raises(OSError, match=f"no network interface with an address matches {variable}=ib7"):
        own_address(backend, "10.0.0.7")


def test_the_address_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    assert own_address("gloo", "10.0.0.7")[0] == "127.0.0.1"
    assert own_address("nccl", "10.0.0.7")[0] == "10.0.0.7"
    assert own_address("nccl", "127.0.1.1")[0] == "", "of the first node, whose own name is a loopback address there"


@pytest.mark.parametrize(
    ("answer", "problems"),
    [
        (HEALTHY, []),
        ("0, 3, 16384, [N/A], [N/A], [N/A]\n1, 3, 16384, [N/A], Not Active, [N/A]\n", []),
        (HEALTHY.splitlines()[0], ["1 of 2 GPUs are visible"]),
        (HEALTHY.replace("0, Not", "2, Not", 1), ["GPU 0 has 2 uncorrected ECC errors"]),
        (HEALTHY.replace("Not Active", "Active", 1), ["GPU 0 is slowed down by its hardware (heat or power)"]),
        (HEALTHY.replace(", Not Active\n", ", Active\n", 1), ["GPU 0 is slowed down by its driver (heat)"]),
        (HEALTHY.replace("612", "70000"), ["GPU 1 has 70000 of 81559 MiB in use"]),
    ],
)
def test_what_is_wrong_with_gpus(answer: str, problems: list[str]) -> None:
    assert read_gpus(answer, 2) == problems


def test_nvidia_smi_is_asked_for_the_gpus_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\nprintf "{HEALTHY}"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert gpu_problems(2) == []
    assert (tmp_path / "asked").read_text().endswith("--format=csv,noheader,nounits --id=4,5\n")
    fake.write_text(
        "#!/bin/sh\necho 'Unable to determine the device handle for GPU0000:C1:00.0: Unknown Error'\nexit 255\n"
    )
    assert gpu_problems(2) == ["nvidia-smi: Unable to determine the device handle for GPU0000:C1:00.0: Unknown Error"]
    fake.unlink()
    [problem] = gpu_problems(2)
    assert problem.startswith("nvidia-smi does not answer")


def test_without_planned_gpus_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert gpu_problems(0) == []


def add_port(root: Path, device: str, state: str, layer: str) -> None:
    """As in the kernel's ABI/stable/sysfs-class-infiniband."""
    port = root / "infiniband" / device / "ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (port / "link_layer").write_text(f"{layer}\n")


def add_link(root: Path, device: str, file: str, state: str) -> None:
    (root / "cxi" / device / file).parent.mkdir(parents=True)
    (root / "cxi" / device / file).write_text(f"{state}\n")


def test_adapters_that_are_faster_than_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_NET", raising=False)
    assert fast_adapters(tmp_path) == []
    add_port(tmp_path, "mlx5_0", "4: ACTIVE", "InfiniBand")
    add_port(tmp_path, "mlx5_1", "1: DOWN", "InfiniBand")
    add_port(tmp_path, "mlx5_bond_0", "4: ACTIVE", "Ethernet")
    add_link(tmp_path, "cxi0", "device/port/link", "up")
    add_link(tmp_path, "cxi1", "device/port/link", "down")
    add_link(tmp_path, "cxi2", "device/port/0/link/state", "up")
    assert fast_adapters(tmp_path) == ["mlx5_0", "cxi0", "cxi2"]
    monkeypatch.setenv("NCCL_NET", "Socket")  # as the user wants
    assert fast_adapters(tmp_path) == []


@pytest.mark.parametrize(
    ("cores", "far"),
    [({0, 1}, "4-7,12"), ({3, 13}, "4-7,12"), ({3, 4}, ""), ({12}, ""), (set(range(16)), "")],
)
def test_cores_that_are_far_from_a_gpu(cores: set[int], far: str, tmp_path: Path) -> None:
    """In a tree as of sysfs: this machine has no GPU."""
    (tmp_path / "0000:c1:00.0").mkdir()
    (tmp_path / "0000:c1:00.0/local_cpulist").write_text("4-7,12\n")
    assert cores_near("0000:c1:00.0", cores, tmp_path) == far


@pytest.mark.parametrize("listed", [None, "\n"])
def test_a_kernel_that_does_not_tell_which_cores_are_near(listed: str | None, tmp_path: Path) -> None:
    if listed is not None:
        (tmp_path / "0000:c1:00.0").mkdir()
        (tmp_path / "0000:c1:00.0/local_cpulist").write_text(listed)
    assert cores_near("0000:c1:00.0", {0}, tmp_path) == ""
