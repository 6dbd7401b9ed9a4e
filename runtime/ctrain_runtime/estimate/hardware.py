"""The GPUs and networks that estimates know."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ctrain_runtime import gpus
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import UsageError

NIC_EFFICIENCY = 0.96  # of the line rate: 24 of 25 GB/s (HDR, nccl issue 412), 48 of 50 (NDR, nccl-tests issue 290)
# Seconds of a step of a ring within a node and to the next: NCCL's own figures (src/graph/tuning.cc: ring, simple).
NVLINK_STEP, NETWORK_STEP = 3.4e-6, 14e-6


@dataclass(frozen=True)
class GpuType:
    """A model in one of its forms. Dense peaks in TFLOP/s, memory in GiB and GB/s, power in W (NVIDIA's data sheets).

    `link` is the bus bandwidth of an all-reduce among the GPUs of a node in GB/s (ring). `unverified` names what is a
    guess; `efficiency` is that of families.py.
    """

    name: str
    bf16: float  # of V100 and T4: fp16
    fp32: float
    memory: float
    bandwidth: float
    link: float
    watts: float
    nic: int = 200  # Gb/s of the NICs that such nodes usually have, one per GPU
    unverified: tuple[str, ...] = ()

    @property
    def has_fp8(self) -> bool:
        """And runs in it are published, of one of these; products in FP8 have twice the peak of those in bf16."""
        return self.name.startswith(("H100", "H200", "GH200"))


_GUESSED = ("link", "efficiency")  # links of cards are guessed by their generation of PCIe
# link: nccl-tests on DGX A100, H100, H200, B200 (nccl issue 1048, nccl-tests issue 290; Bekman, ML Engineering).
# Of a model, the form that nodes of several GPUs usually have comes first.
_TYPES = (
    GpuType("V100-SXM2-16GB", 125, 15.7, 16, 900, 130, 300, 100, unverified=_GUESSED),
    GpuType("V100-SXM2-32GB", 125, 15.7, 32, 900, 130, 300, 100, unverified=_GUESSED),
    GpuType("V100-PCIe-16GB", 112, 14, 16, 900, 10, 250, 100, unverified=_GUESSED),
    GpuType("V100-PCIe-32GB", 112, 14, 32, 900, 10, 250, 100, unverified=_GUESSED),
    GpuType("V100S-PCIe-32GB", 130, 16.4, 32, 1134, 10, 250, 100, unverified=_GUESSED),
    GpuType("A100-SXM4-40GB", 312, 19.5, 40, 1555, 230, 400, 200),
    GpuType("A100-SXM4-80GB", 312, 19.5, 80, 2039, 230, 400, 200),
    GpuType("A100-PCIe-40GB", 312, 19.5, 40, 1555, 20, 250, unverified=_GUESSED),
    GpuType("A100-PCIe-80GB", 312, 19.5, 80, 1935, 20, 300, unverified=_GUESSED),
    GpuType("H100-SXM5-80GB", 989, 67, 80, 3350, 370, 700, 400),
    GpuType("H100-PCIe-80GB", 756, 51, 80, 2000, 40, 350, unverified=_GUESSED),
    GpuType("H100-NVL-94GB", 835, 60, 94, 3900, 40, 400, unverified=_GUESSED),
    GpuType("H200-SXM5-141GB", 989, 67, 141, 4800, 370, 700, 400),
    GpuType("H200-NVL-141GB", 835, 60, 141, 4800, 40, 600, unverified=_GUESSED),
    GpuType("GH200-96GB", 989, 67, 96, 4000, 370, 700, 200, unverified=("link", "watts")),
    GpuType("GH200-144GB", 989, 67, 144, 4900, 370, 700, 200, unverified=("link", "watts")),
    GpuType("B200-180GB", 2250, 75, 180, 7700, 741, 1000, 400, unverified=("fp32", "bandwidth", "efficiency")),
    GpuType("A30-24GB", 165, 10.3, 24, 933, 20, 165, unverified=_GUESSED),
    GpuType("A40-48GB", 149.7, 37.4, 48, 696, 20, 300, unverified=_GUESSED),
    GpuType("A10-24GB", 125, 31.2, 24, 600, 20, 150, unverified=_GUESSED),
    GpuType("L40S-48GB", 362, 91.6, 48, 864, 20, 350, unverified=_GUESSED),
    GpuType("L4-24GB", 121, 30.3, 24, 300, 20, 72, unverified=_GUESSED),
    GpuType("T4-16GB", 65, 8.1, 16, 300, 10, 70, 100, unverified=_GUESSED),
)
GPU_TYPES = {gpu.name: gpu for gpu in _TYPES}
MODELS = tuple(dict.fromkeys(name.partition("-")[0] for name in GPU_TYPES if not name.startswith("V100S")))
_WITH_CPU = ("GH200",)  # drivers name them by the memory of their CPU: GH200 480GB, GH200 120GB (both have 96 GB)
HOST_LINK = 10  # of MIG instances, which reach each other through the host's memory alone; a guess


@dataclass(frozen=True)
class Hardware:
    """`count` GPUs, `per_node` on each node, and a node's bandwidth to the network in GB/s."""

    gpu: GpuType
    count: int
    per_node: int
    network: float

    @property
    def nodes(self) -> int:
        return -(-self.count // self.per_node)

    def group_bandwidth(self, size: int, on_a_node: int) -> float:
        """Bytes/s of the bus bandwidth of a collective of `size` ranks, of which a node has `on_a_node`.

        A node's NICs are shared by the groups that it takes part in; infinite for a single rank.
        """
        if size == 1:
            return math.inf
        across = self.network * on_a_node / self.per_node
        return (min(self.gpu.link, across) if size > on_a_node else self.gpu.link) * 1e9

    def ring_latency(self, size: int, on_a_node: int) -> float:
        """Seconds that a gather or a reduction of `size` ranks takes however little it moves: the steps of its ring."""
        nodes = -(-size // on_a_node)
        return (size - nodes) * NVLINK_STEP + (nodes - 1) * NETWORK_STEP


def make_hardware(
    gpu: GpuType, count: int, per_node: int, nics: int, speed: int = 0, measured: float = 0
) -> tuple[Hardware, list[str]]:
    """`count` GPUs, and notes on what is not certain. A node's network has the `measured` rate in GB/s, else that of
    `nics` adapters of `speed` Gb/s (0: usual with the GPU type)."""
    network, note = nics * (speed or gpu.nic) / 8 * NIC_EFFICIENCY, f"{nics} x {speed or gpu.nic} Gb/s per node"
    if measured:
        network, note = float(measured), f"{measured:g} GB/s per node, as expected_bandwidth of the site"
    elif not speed:
        note += " (assumed)"
    notes = [f"network: {note}"] if count > per_node else []
    if gpu.unverified:
        notes.append(f"unverified of {gpu.name}: {', '.join(gpu.unverified)}")
    return Hardware(gpu, count, per_node, network), notes


def find_gpus(name: str) -> tuple[GpuType, ...]:
    """The GPU types that a name of users, schedulers or drivers can mean, the one with the least memory first:
    A100-40GB, nvidia_a100, a100_1g.5gb. Raises UsageError."""
    gpu = gpus.identify(name)
    types = [(type_, parsed) for type_, parsed in _parsed_types() if parsed.model == gpu.model]
    if not gpu.model or not types:
        hint = suggest(name.upper(), MODELS) or f"GPU types: {', '.join(MODELS)}"
        raise UsageError(f"unknown GPU type {name!r}", hint)
    types = [(type_, parsed) for type_, parsed in types if gpu.form in ("", parsed.form)] or types
    possible = sorted((type_ for type_, _ in types), key=lambda type_: type_.memory)
    listed = [type_ for type_ in possible if type_.memory == gpu.memory]
    if listed or (gpu.model not in _WITH_CPU and 0 < gpu.memory <= possible[-1].memory):
        possible = listed or [_resized(possible[0], gpu)]
    return _slices(possible, gpu) if gpu.slice else tuple(possible)


def ambiguity(name: str, types: Sequence[GpuType], used: GpuType) -> tuple[str, ...]:
    """A note on a name that can mean several types, one of which is `used`."""
    if len(types) == 1:
        return ()
    others = ", ".join(type_.name for type_ in types)
    return (f"GPU type {name} is ambiguous ({others}): estimated as {used.name}",)


@functools.cache
def _parsed_types() -> tuple[tuple[GpuType, gpus.Gpu], ...]:
    return tuple((type_, gpus.identify(type_.name)) for type_ in _TYPES)


def _resized(near: GpuType, gpu: gpus.Gpu) -> GpuType:
    """A type with a memory that no data sheet here has, as some sites' own ones."""
    name, unverified = f"{gpu.model}-{gpu.memory}GB", dict.fromkeys((*near.unverified, "bandwidth"))
    return replace(near, name=name, memory=gpu.memory, unverified=tuple(unverified))


def _slices(types: Sequence[GpuType], gpu: gpus.Gpu) -> tuple[GpuType, ...]:
    """The types of which a MIG instance can be a part (NVIDIA's MIG User Guide, Supported MIG Profiles): of their
    compute slices, 7 (of A30: 4), it has some, and a share of the memory."""
    part = gpu.slice or gpus.Slice(7, 0)
    slices = 4 if gpu.model == "A30" else 7
    usual = {1: 1 / 8, 2: 2 / 8, 3: 4 / 8, 4: 4 / 8}.get(part.compute, 1) if slices == 7 else part.compute / 4
    large_enough = [type_ for type_ in types if type_.memory >= part.memory] or types
    fitting = [type_ for type_ in large_enough if abs(type_.memory * usual - part.memory) < 1] or large_enough
    instances: dict[tuple[float, float], GpuType] = {}
    for whole in fitting:
        compute, memory = min(1.0, part.compute / slices), min(1.0, part.memory / whole.memory)
        type_ = replace(
            whole,
            name=f"{whole.name} MIG {part}",
            bf16=whole.bf16 * compute,
            fp32=whole.fp32 * compute,
            memory=min(part.memory, whole.memory),
            bandwidth=whole.bandwidth * memory,
            link=HOST_LINK,
            watts=whole.watts * compute,
            unverified=tuple(dict.fromkeys((*whole.unverified, "link", "watts"))),
        )
        instances.setdefault((type_.bf16, type_.bandwidth), type_)
    return tuple(instances.values())
