"""Whose GPUs are; of NVIDIA's, models and their compute capabilities (definitions/ngc.yaml), files of the driver."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Optional

from ctrain_runtime.base import paths
from ctrain_runtime.store.manifest import Requires

DRIVER_FILE = Path("/proc/driver/nvidia/version")
# The libraries of a newer driver, in NVIDIA's images and in its package cuda-compat (its guide CUDA Compatibility).
HOST_LIBRARIES = "/.singularity.d/libs"  # in a container that was started with --nv
COMPAT_DIRS = tuple(f"/usr/local/cuda/compat{part}" for part in ("/lib.real", "/lib", ""))
Maker = Literal["nvidia", "amd", "intel"]
# In schedulers' types of GPUs, as in mi250x, amd_instinct, pvc or Data Center GPU Max 1550; all others are NVIDIA's.
_AMD = re.compile(r"amd|mi\d\d|instinct|radeon|gfx", re.IGNORECASE)
_INTEL = re.compile(r"intel|pvc|ponte|max.?1[15][05]0", re.IGNORECASE)


# A model's forms, in names with spaces: V100S PCIE 32GB, A100 SXM4 40GB, H100 80GB HBM3 (PCIe cards are called so).
_FORMS = {"V100S": r"v100s", "NVL": r"nvl\b", "PCIe": r"pcie?\b", "SXM": r"sxm|h100.*hbm3\b"}
_MEMORY = re.compile(r"(?<![.\w])([0-9]{1,3}) ?gb?\b(?!\.)")
_SLICE = re.compile(r"\b(?:[1-7]c\.)?([1-7])g\.([0-9]{1,3})gb\b")  # NVIDIA's MIG User Guide, MIG Device Names


@dataclass(frozen=True)
class Slice:
    """A MIG instance: how many of a GPU's compute slices it has, and GB of its memory."""

    compute: int
    memory: int

    def __str__(self) -> str:
        return f"{self.compute}g.{self.memory}gb"


@dataclass(frozen=True)
class Gpu:
    """A GPU as a scheduler or a driver names it.

    `model`: as in A100; `capability`: as in 8.0; "" if unknown. The rest is set as far as the name says it: `form`
    (SXM, PCIe, NVL, V100S), `memory` in GB, and `slice`, the part of the GPU (None: all of it).
    """

    name: str
    model: str = ""
    capability: str = ""
    form: str = ""
    memory: int = 0
    slice: Optional[Slice] = None


@functools.cache
def identify(name: str) -> Gpu:
    """The GPU that a name means, as in a100, cas_v100nv_8, NVIDIA H100 80GB HBM3 or a100_1g.5gb."""
    capabilities = _capabilities()
    models = Requires(gpus=tuple(capabilities)).matching_gpus([name])
    if not models:
        return Gpu(name)
    words = re.sub(r"[-_]", " ", name.lower())
    form = next((form for form, pattern in _FORMS.items() if re.search(pattern, words)), "")
    part, memory = _SLICE.search(words), _MEMORY.search(words)
    return Gpu(
        name=name,
        model=models[0],
        capability=capabilities[models[0]],
        form=form,
        memory=int(memory[1]) if memory else 0,
        slice=Slice(int(part[1]), int(part[2])) if part else None,
    )


def more_exact(of_scheduler: str, of_site: str) -> str:
    """The name of a GPU type: the scheduler's, or the site's where that adds form or memory to it (a100)."""
    if not of_scheduler or not of_site:
        return of_scheduler or of_site
    own, other = identify(of_scheduler), identify(of_site)
    adds = (other.form and not own.form) or (other.memory and not own.memory)
    return of_site if adds and own.model == other.model and not own.slice else of_scheduler


def maker(gpu_type: str) -> Maker:
    """Whose GPUs of a scheduler's type are; NVIDIA's if that is not known."""
    return "amd" if _AMD.search(gpu_type) else "intel" if _INTEL.search(gpu_type) else "nvidia"


@functools.cache
def _capabilities() -> Mapping[str, str]:
    from ctrain_runtime.base import strict_yaml  # only here: YAML is slow to import

    generations = strict_yaml.read(paths.data_dir("definitions") / "ngc.yaml")["generations"]
    return {model: capability for capability, generation in generations.items() for model in generation["gpus"]}
