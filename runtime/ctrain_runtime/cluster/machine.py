"""This machine's GPUs, driver and CPU, as the kernel shows them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from ctrain_runtime.gpus import DRIVER_FILE, Maker

_GPUS = Path("/proc/driver/nvidia/gpus")
_CPUS = Path("/proc/cpuinfo")
_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_DRM = Path("/sys/class/drm")


def count_gpus() -> int:
    """The NVIDIA GPUs of this machine."""
    return len(list(_GPUS.glob("*")))


def count_amd_gpus() -> int:
    """The AMD GPUs of this machine. Of the kernel's nodes, those that are CPUs have the id 0 (kfd_topology.c)."""
    ids = [path.read_text(encoding="ascii").strip() for path in _AMD_NODES.glob("*/gpu_id")]
    return len(ids) - ids.count("0")


def count_intel_gpus() -> int:
    """The Intel GPUs of this machine that have memory of their own: on Intel's CPUs graphics are on PCI bus 0."""
    cards = [
        file.parent for file in _DRM.glob("renderD*/device/vendor") if "0x8086" in file.read_text(encoding="ascii")
    ]
    return sum(card.resolve().name.split(":")[1:2] != ["00"] for card in cards)


def count_visible_gpus() -> int:
    """The GPUs of this machine that programs started here would see."""
    uuids = [uuid for text in _gpu_information() for uuid in re.findall(r"^GPU UUID:\s*(\S+)", text, re.MULTILINE)]
    nvidia = count_visible(count_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
    amd = count_visible(count_amd_gpus(), os.environ.get("ROCR_VISIBLE_DEVICES"))
    return nvidia + count_visible(amd, os.environ.get("HIP_VISIBLE_DEVICES")) + _visible_intel_gpus()


def _visible_intel_gpus() -> int:
    """By ZE_AFFINITY_MASK: numbers of cards, or CARD.TILE; an empty one hides nothing (Level Zero's specification,
    Environment Variables; not seen on such a machine)."""
    count, mask = count_intel_gpus(), os.environ.get("ZE_AFFINITY_MASK", "")
    return min(count, len({entry.partition(".")[0].strip() for entry in mask.split(",")})) if mask else count


def count_visible(count: int, devices: Optional[str], uuids: Sequence[str] = ()) -> int:
    """How many of `count` GPUs a program sees with CUDA_VISIBLE_DEVICES=`devices` (None: unset); `uuids`: if known.

    As CUDA reads it (its Programming Guide, CUDA Environment Variables): a number, or the beginning of one UUID; the
    list ends before the first entry that is neither, as in "-1", and is empty if an entry comes twice. A process sees
    one MIG instance at most, and no whole GPU beside it.
    """
    if devices is None:
        return count
    seen: list[str] = []
    for entry in map(str.strip, devices.split(",")):
        if entry.startswith("MIG-"):
            return min(count, 1) if not seen else len(seen)
        of_uuid = [uuid for uuid in uuids if uuid.startswith(entry)] if entry.startswith("GPU-") else []
        if len(of_uuid) == 1:
            device = of_uuid[0]
        elif entry.isascii() and entry.isdigit() and len(entry) < 5 and int(entry) < count:
            device = str(int(entry))
        elif entry.startswith("GPU-") and not uuids:
            device = entry
        else:
            break
        if device in seen:
            return 0
        seen.append(device)
    return min(count, len(seen))


def gpu_maker() -> Maker:
    """Whose GPUs this machine has; NVIDIA's if it has several makers', or none."""
    if not count_gpus() and count_amd_gpus():
        return "amd"
    return "intel" if not count_gpus() and count_intel_gpus() else "nvidia"


def gpu_models() -> tuple[str, ...]:
    """The driver's names of this machine's NVIDIA GPUs, as in NVIDIA A100-SXM4-80GB; each model once."""
    models = (re.findall(r"^Model:\s*(.+)$", text, re.MULTILINE) for text in _gpu_information())
    return tuple(dict.fromkeys(model for each in models for model in each))


def _gpu_information() -> list[str]:
    """What the driver tells of each of NVIDIA's GPUs."""
    return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(_GPUS.glob("*/information"))]


def cpu_instructions() -> frozenset[str]:
    """What this machine's CPU has besides the basic instructions, by Linux's names; empty where it lists none."""
    with _CPUS.open(encoding="ascii", errors="replace") as file:
        flags = re.search(r"(?m)^flags\s*: (.*)$", file.read(1 << 14))  # of the first core
    return frozenset(flags[1].split()) if flags else frozenset()


def driver_version() -> str:
    """The version of this machine's NVIDIA driver; "" without one."""
    version = re.search(r"Kernel Module.*?\s(\d{3}[.\d]*)", driver_text())
    return version[1] if version else ""


def driver_text() -> str:
    """What this machine's NVIDIA driver tells of itself; "" without one."""
    try:
        return DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
