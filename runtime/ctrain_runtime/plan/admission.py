"""Whether an image can run on the nodes of a run. Pure; what is not known never refuses.

Rules: NVIDIA's CUDA Compatibility guide ("Minor Version Compatibility", "Forward Compatibility") and its CUDA C++
Programming Guide ("Binary Compatibility", "PTX Compatibility").
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Optional, Union

from ctrain_runtime.cluster.model import Partition
from ctrain_runtime.gpus import Gpu, Maker, identify, maker
from ctrain_runtime.images.image import OCI_ARCH
from ctrain_runtime.store.manifest import CPU_LABEL, Manifest

# The first driver branch that runs all programs of a major version of CUDA without forward compatibility.
NATIVE_DRIVERS = {11: 450, 12: 525, 13: 580}
# Forward compatibility is for data-centre GPUs and some workstation cards, never for these.
_CONSUMER_GPU = re.compile(r"geforce|rtx[ _-]?[2-5]0[5-9]0", re.IGNORECASE)
# What programs for these CPUs use, by Linux's names (System V ABI, AMD64 supplement, "Micro-Architecture Levels").
_V3 = frozenset(("abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))
_INSTRUCTIONS = {"x86-64-v3": _V3, "haswell": _V3}

_MAKES: dict[str, Maker] = {"cuda": "nvidia", "rocm": "amd", "xpu": "intel"}  # by software of images
_NAMES: dict[Maker, str] = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}


@dataclass(frozen=True)
class NodeFacts:
    """The known facts about the nodes of a run.

    `name`: the nodes, as messages call them; `arch`: the output of `uname -m`.
    `gpus`: the GPUs that the run uses, as the scheduler or the driver names them; `maker`: who made them.
    `driver`: NVIDIA's version ("": unknown); `instructions`: those of the CPU (empty: unknown).
    """

    name: str
    arch: str = ""
    gpus: tuple[str, ...] = ()
    driver: str = ""
    instructions: frozenset[str] = frozenset()
    maker: Union[Maker, Literal[""]] = ""


def nodes_of(part: Partition, *, use_gpus: bool) -> NodeFacts:
    """What is known of the nodes of a partition; its name may tell the type of its GPUs."""
    gpus = (part.gpu_type or part.name,) if use_gpus and part.gpus else ()
    return NodeFacts(
        f"partition {part.name}", part.arch, gpus, part.driver, maker=_maker(part.gpu_type) if gpus else ""
    )


def _maker(gpu_type: str) -> Union[Maker, Literal[""]]:
    """Whose GPUs of a type are. Only the type tells: AMD's in the name of a partition are often the CPUs."""
    if identify(gpu_type).model:
        return "nvidia"
    other = maker(gpu_type)
    return other if other != "nvidia" else ""  # which stands for what is not known, too


def refusal(image: Manifest, nodes: NodeFacts) -> str:
    """Why `image` cannot run on `nodes`; "" if it can, or may."""
    architecture = OCI_ARCH.get(nodes.arch, nodes.arch)
    if image.arch and architecture and image.arch != architecture:
        return f"{nodes.name} is {nodes.arch}, the image is for {image.arch}"
    compiled_for = image.labels.get(CPU_LABEL, "")
    missing = _INSTRUCTIONS.get(compiled_for, frozenset()) - nodes.instructions
    if nodes.instructions and missing:
        return f"the CPU of {nodes.name} lacks {' '.join(sorted(missing))}, the image is compiled for {compiled_for}"
    made_for = _makers(image)
    if nodes.gpus and nodes.maker and made_for and nodes.maker not in made_for:
        whose = f"the GPUs of {nodes.name} ({', '.join(nodes.gpus)}) are {_NAMES[nodes.maker]}'s"
        return f"{whose}, the image is for {' and '.join(sorted(_NAMES[of] for of in made_for))}'s"
    if not nodes.gpus or "cuda" not in image.software:
        return ""
    if "musl" in image.software:
        return "its C library is musl, and the libraries of NVIDIA's driver need glibc"
    return next(filter(None, (_too_old(image, gpu) for gpu in nodes.gpus)), "") or _driver_problem(image, nodes)


def _makers(image: Manifest) -> set[Maker]:
    """For whose GPUs the image is; empty for CPUs, and where that is not known."""
    return {_MAKES[key] for key in _MAKES if key in image.software}


def is_for_cpus(image: Manifest) -> bool:
    """Whether its framework is known to have no GPUs; not all builds for Intel's say so otherwise (versions.py)."""
    known = {"torch", "tensorflow"} & image.software.keys()
    return bool(known) and not _makers(image) and not image.software.get("torch", "").endswith("+xpu")


def notes(image: Manifest, nodes: NodeFacts) -> tuple[str, ...]:
    """Lines for an image that leaves the GPUs of `nodes` idle or needs forward compatibility there, and on what of one
    from elsewhere is unknown."""
    if nodes.gpus and is_for_cpus(image):
        return (
            f"the image computes on CPUs alone: the GPUs of {nodes.name} stay idle (--gpus-per-node 0 asks for none)",
        )
    if not nodes.gpus or "cuda" not in image.software:
        return ()
    if _is_older(nodes.driver, native_driver(image)):
        needed = f"CUDA {image.software['cuda']} needs driver {native_driver(image)}, {nodes.name} has {nodes.driver}"
        listed = next((branch for branch in image.requires.older_drivers if _is_of_branch(nodes.driver, branch)), "")
        if listed:
            return (f"{needed}: it runs by forward compatibility, on data-centre GPUs (listed: {listed})",)
        return (f"{needed}: whether it runs by forward compatibility is unknown, no list names that driver",)
    facts = {"the driver": nodes.driver, "the image's GPU code": image.requires.arch}
    unknown = [name for name, fact in facts.items() if not fact]
    return (f"not compared with {nodes.name}: {', '.join(unknown)}",) if unknown and not image.layers else ()


def native_driver(image: Manifest) -> int:
    """The driver branch from which the image runs without forward compatibility; 0 if unknown, or without CUDA."""
    major = re.match(r"\d+", image.software.get("cuda", ""))
    return NATIVE_DRIVERS.get(int(major[0]), 0) if major else 0


def compiled_models(image: Manifest, names: Iterable[str]) -> tuple[str, ...]:
    """The models of the GPUs `names` that the image is compiled for, each once: for the same major capability, and an
    equal or lower minor one."""
    codes = [numbers(code) for code in image.requires.arch]
    capabilities = [(gpu.model, numbers(gpu.capability)) for gpu in map(identify, names) if gpu.capability]
    compiled = (model for model, of in capabilities if any(code[0] == of[0] and code <= of for code in codes))
    return tuple(dict.fromkeys(compiled))


def nearest(image: Manifest, published: Iterable[Manifest], nodes: NodeFacts) -> Optional[Manifest]:
    """Of `published`, oldest first, the newest that fits: one of the same name, else any of the same kind."""
    fitting = [
        other
        for other in published
        if not other.flat and bool(_makers(other)) == bool(_makers(image)) and not refusal(other, nodes)
    ]
    return next((other for other in reversed(fitting) if other.name == image.name), fitting[-1] if fitting else None)


def _too_old(image: Manifest, name: str) -> str:
    """Newer GPUs than those that the image is compiled for may compile its PTX; older ones can do nothing."""
    codes = [numbers(code) for code in image.requires.arch]
    gpu = identify(name) if codes else Gpu(name)
    if not gpu.capability or min(codes) <= numbers(gpu.capability):
        return ""
    compiled = " ".join(image.requires.arch)
    return f"GPU {gpu.model} (compute capability {gpu.capability}) is older than the image's GPU code ({compiled})"


def _driver_problem(image: Manifest, nodes: NodeFacts) -> str:
    native, older = native_driver(image), image.requires.older_drivers
    if not _is_older(nodes.driver, native):
        return ""
    problem = f"CUDA {image.software['cuda']} needs driver {native} or newer, {nodes.name} has {nodes.driver}"
    for gpu in nodes.gpus:
        if _CONSUMER_GPU.search(gpu):
            return f"{problem}, and GPU {gpu} has no forward compatibility"
    if not image.layers and "cuda-compat" not in image.software:  # ctrain's own images come with their requirements
        return f"{problem}, and the image has no libraries for forward compatibility"
    if older and all(numbers(nodes.driver) < numbers(branch) for branch in older):
        return f"{problem}; by forward compatibility also {', '.join(older)}"
    return ""


def _is_of_branch(driver: str, branch: str) -> bool:
    """Whether a driver (470.82.01) is of a branch that a list names by its first version (470.57), or by its number."""
    return numbers(driver)[:1] == numbers(branch)[:1] and numbers(driver) >= numbers(branch)


def _is_older(driver: str, native: int) -> bool:
    return bool(numbers(driver)) and numbers(driver) < (native,)


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare it."""
    return tuple(map(int, re.findall(r"\d+", version)))
