"""The GPUs and networks that estimates know."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ctrain_runtime import gpus
from ctrain_runtime.errors import UsageError
from ctrain_runtime.suggest import suggest

NIC_EFFICIENCY = 0.96  # of the line rate: 24 of 25 GB/s (HDR, nccl issue 412), 48 of 50 (NDR, nccl-tests issue 290)
# Seconds of a step of a ring within a node and to the next: NCCL's own figures (src/graph/tuning.cc: ring, simple).
NVLINK_STEP, NETWORK_STEP = 3.4e-6, 14e-6


@dataclass(frozen=True)
class GpuType:
    """A GPU model. Dense peaks in TFLOP/s, memory in GiB and GB/s, power in W (NVIDIA's data sheets, SXM modules).

    `link` is the bus bandwidth of an all-reduce among the GPUs of a node in GB/s (ring), `efficiency` the share of the
    peak that large matrix products reach. `unverified` names what is a guess.
    """

    name: str
    bf16: float  # of V100: fp16
    fp32: float
    memory: float
    bandwidth: float
    link: float
    watts: float
    nic: int = 200  # Gb/s of the NICs that such nodes usually have, one per GPU
    efficiency: float = 0.6
    unverified: tuple[str, ...] = ()


# link: nccl-tests on DGX A100, H100, H200, B200 (nccl issue 1048, nccl-tests issue 290; Bekman, ML Engineering).
# efficiency: fitted to Table 1 of Narayanan et al. 2021 (A100), and to llm.c's 1.6B run (H100, H200).
_TYPES = (
    GpuType("V100", 125, 15.7, 32, 900, 130, 300, 100, unverified=("link", "efficiency")),
    GpuType("A100", 312, 19.5, 80, 2039, 230, 400, 200, 0.68),
    GpuType("A100-40GB", 312, 19.5, 40, 1555, 230, 400, 200, 0.68),
    GpuType("H100", 989, 67, 80, 3350, 370, 700, 400, 0.62),
    GpuType("H200", 989, 67, 141, 4800, 370, 700, 400, 0.62),
    GpuType("GH200", 989, 67, 96, 4000, 370, 700, 200, 0.62, unverified=("link", "watts")),
    GpuType("B200", 2250, 75, 180, 7700, 741, 1000, 400, unverified=("fp32", "bandwidth", "efficiency")),
)
GPU_TYPES = {gpu.name: gpu for gpu in _TYPES}


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


def find_gpu(name: str) -> GpuType:
    """The GPU type for a name as users, schedulers and drivers write it: A100-40GB, nvidia_a100. Raises UsageError."""
    found = GPU_TYPES.get(name.upper()) or GPU_TYPES.get(gpus.identify(name).model)
    if not found:
        hint = suggest(name.upper(), GPU_TYPES) or f"GPU types: {', '.join(GPU_TYPES)}"
        raise UsageError(f"unknown GPU type {name!r}", hint)
    return found
