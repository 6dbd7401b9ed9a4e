"""Whose GPUs are; of NVIDIA's, models and their compute capabilities (definitions/ngc.yaml), files of the driver."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ctrain_runtime import paths
from ctrain_runtime.manifest import Requires

DRIVER_FILE = Path("/proc/driver/nvidia/version")
# The libraries of a newer driver, in NVIDIA's images and in its package cuda-compat (its guide CUDA Compatibility).
HOST_LIBRARIES = "/.singularity.d/libs"  # in a container that was started with --nv
COMPAT_DIRS = tuple(f"/usr/local/cuda/compat{part}" for part in ("/lib.real", "/lib", ""))
Maker = Literal["nvidia", "amd", "intel"]
# In schedulers' types of GPUs, as in mi250x, amd_instinct, pvc or Data Center GPU Max 1550; all others are NVIDIA's.
_AMD = re.compile(r"amd|mi\d\d|instinct|radeon|gfx", re.IGNORECASE)
_INTEL = re.compile(r"intel|pvc|ponte|max.?1[15][05]0", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """A GPU as a scheduler or a driver names it; its model (A100) and compute capability (8.0), "" if not known."""

    name: str
    model: str = ""
    capability: str = ""


def identify(name: str) -> Gpu:
    """The GPU that a name means, as in a100, cas_v100nv_8 or NVIDIA H100 80GB HBM3."""
    capabilities = _capabilities()
    models = Requires(gpus=tuple(capabilities)).matching_gpus([name])
    return Gpu(name, models[0], capabilities[models[0]]) if models else Gpu(name)


def maker(gpu_type: str) -> Maker:
    """Whose GPUs of a scheduler's type are; NVIDIA's if that is not known."""
    return "amd" if _AMD.search(gpu_type) else "intel" if _INTEL.search(gpu_type) else "nvidia"


@functools.cache
def _capabilities() -> Mapping[str, str]:
    from ctrain_runtime import strict_yaml  # only here: YAML is slow to import

    generations = strict_yaml.read(paths.data_dir("definitions") / "ngc.yaml")["generations"]
    return {model: capability for capability, generation in generations.items() for model in generation["gpus"]}
