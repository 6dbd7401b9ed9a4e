"""Checks the network adapters of this machine that NCCL, UCX and libfabric use."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from ctrain_runtime.cluster import machine
from ctrain_runtime.doctor import Finding
from ctrain_runtime.payload.preflight.node_checks import SLINGSHOT_LINKS

_INFINIBAND = Path("/sys/class/infiniband")  # RoCE and EFA, too
_CXI = Path("/sys/class/cxi")  # HPE Slingshot
_VERBS = Path("/dev/infiniband")
_MODULES = Path("/sys/module")


def adapters() -> dict[str, str]:
    """The state of each adapter, as in {"mlx5_0": "ACTIVE 200 Gb/sec (4X HDR)", "cxi0": "link up"}."""
    ports = {
        device.name: max(
            map(_port, sorted(device.glob("ports/*"))), default="no port", key=lambda text: "ACTIVE" in text
        )
        for device in sorted(_INFINIBAND.glob("*"))
    }
    slingshot = {device.name: "present" for device in sorted(_CXI.glob("*"))}
    for file in (file for name in SLINGSHOT_LINKS for file in _CXI.glob(f"*/{name}")):
        slingshot[file.relative_to(_CXI).parts[0]] = f"link {file.read_text(encoding='ascii').strip()}"
    return {**ports, **slingshot}


def _port(port: Path) -> str:
    """As in "4: ACTIVE" and "200 Gb/sec (4X HDR)" (the kernel's Documentation/ABI/stable/sysfs-class-infiniband)."""
    state, rate = ((port / name).read_text(encoding="ascii", errors="replace").strip() for name in ("state", "rate"))
    return f"{state.partition(': ')[2]} {rate}"


def check_fabric() -> Iterator[Finding]:
    """Whether the adapters are up, and this user and the GPUs can use them."""
    states = adapters()
    if not states:
        yield Finding("fabric", "ok", "no InfiniBand, RoCE or Slingshot adapter: ranks of several nodes use TCP")
        return
    text = ", ".join(f"{name} {state}" for name, state in states.items())
    if any(state.startswith(("ACTIVE", "link up", "present")) for state in states.values()):
        yield Finding("fabric", "ok", text)
    else:
        yield Finding("fabric", "fail", f"no port is active: {text}", "Ask the administrators; see: ibstat, cxi_stat")
    verbs = sorted(_VERBS.glob("uverbs*"))
    if any(not os.access(path, os.R_OK | os.W_OK) for path in verbs) or (not verbs and _INFINIBAND.is_dir()):
        hint = "Ask the administrators to run: modprobe ib_uverbs && chmod 666 /dev/infiniband/uverbs*"
        yield Finding("verbs", "fail", f"{_VERBS}/uverbs*: not accessible; NCCL would use TCP", hint)
    peer_memory = ("nvidia_peermem", "nv_peer_mem")
    has_module = any((_MODULES / name).is_dir() for name in peer_memory)
    if machine.count_gpus() and verbs and not (has_module or _has_dma_buf()):
        hint = "Ask the administrators to run: modprobe nvidia_peermem"
        yield Finding("peermem", "warn", "nvidia_peermem is not loaded: adapters cannot read GPU memory", hint)


def _has_dma_buf() -> bool:
    """Whether adapters read GPU memory by DMA-BUF, without nvidia_peermem.

    That takes NVIDIA's open kernel module under Linux 5.12 or later ("GPUDirect RDMA and GPUDirect Storage" of NVIDIA's
    GPU Operator). Kernels with a backport are not known by their version.
    """
    kernel = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    return kernel >= (5, 12) and "Open Kernel Module" in machine.driver_text()
