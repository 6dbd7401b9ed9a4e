"""Cases of estimates, and the figures that papers and talks have published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ctrain_runtime.estimate.estimate import Case
from ctrain_runtime.estimate.hardware import NIC_EFFICIENCY, Hardware, find_gpus
from ctrain_runtime.estimate.layout import Layout
from ctrain_runtime.estimate.model import Model

# Of a job.yaml.
TRAINING = """\
training:
  model: {layers: layers=12, hidden: width=768, heads: 12, sequence: 1024, vocabulary: 50257}
  layout: {batch: batch=64, micro_batch: 8}
  steps: steps=1000
"""


def a_hardware(count: int, gpu: str = "A100-SXM4-80GB", per_node: int = 8, nics: int = 8) -> Hardware:
    type_ = find_gpus(gpu)[0]
    return Hardware(type_, count, per_node, nics * type_.nic / 8 * NIC_EFFICIENCY)


def a_case(model: Model, count: int, batch: int, tokens: float = 0, nics: int = 8, **layout: Any) -> Case:
    return Case(model, a_hardware(count, nics=nics), Layout(batch, **layout), tokens)


# As in 2021: activations are recomputed, and attention scores go through memory.
MEGATRON: dict[str, Any] = {"recompute": "full", "attention": "plain"}


@dataclass(frozen=True)
class Row:
    """A row of Table 1 of Narayanan et al. 2021: billions of parameters, TFLOP/s per GPU, PFLOP/s in all."""

    parameters: float
    heads: int
    hidden: int
    layers: int
    tp: int
    pp: int
    gpus: int
    batch: int
    tflops: int
    percent: int
    pflops: float

    def case(self) -> Case:
        model = Model(self.layers, self.hidden, self.heads)
        return a_case(model, self.gpus, self.batch, tp=self.tp, pp=self.pp, **MEGATRON)


TABLE_1 = (
    Row(1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 44, 4.4),
    Row(3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 44, 8.8),
    Row(7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 46, 18.2),
    Row(18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 43, 34.6),
    Row(39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 44, 70.8),
    Row(76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 45, 143.8),
    Row(145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 47, 227.1),
    Row(310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 50, 297.4),
    Row(529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 52, 410.2),
    Row(1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 52, 502.0),
)
