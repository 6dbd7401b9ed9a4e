"""Measures what examples/gpt keeps in the host's memory with `offload=cpu`, by DeepSpeed's ZeRO.

    apptainer exec IMAGE python tests/samples/memory/measure_host.py > tests/samples/memory/measured_host.csv

Needs torch and DeepSpeed with its operators, and no GPU. Where there is none all is in the host's memory, so what is
counted are the tensors that DeepSpeed 0.19 makes on `self.device`, or on that of those, where it offloads.
"""

# ruff: noqa: E402  # the paths of the examples come before the imports
from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path[:0] = [str(EXAMPLES / "gpt"), str(EXAMPLES / "common")]
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", DS_ACCELERATOR="cpu")

import strategies
import torch
from config import Config
from example import World

CASES = [(strategy, bf16) for strategy in ("zero1", "zero2", "zero3") for bf16 in (True, False)]
OF_DEEPSPEED = (
    "fp32_partitioned_groups_flat",
    "fp16_partitioned_groups_flat",
    "grad_partitions_flat_buffer",
    "single_partition_of_fp32_groups",
    "offload_gradient_dict",
    "param_buffer_of_bit16_for_cpu_offload_groups",
)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield from (value, *([] if value.grad is None else [value.grad]))
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)


def measure(strategy: str, bf16: bool) -> tuple[int, int]:
    """Parameters, and bytes."""
    torch.distributed.init_process_group("gloo")
    config = Config(layers=4, heads=8, width=512, context=128, bf16=bf16, strategy=strategy, batch=2, offload="cpu")
    trained = strategies.Strategy(config, World(0, 1, 0, torch.device("cpu")), 2000)
    for _ in range(2):
        trained.step(torch.zeros(2, 129, dtype=torch.int64), 1e-3)
    kept = [getattr(trained.optimizer, name, []) for name in OF_DEEPSPEED]
    states = [value for state in trained.optimizer.optimizer.state.values() for value in state.values()]
    sizes = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors([kept, states])
    }
    return sum(getattr(part, "ds_numel", part.numel()) for part in trained.model.parameters()), sum(sizes.values())


def main() -> None:
    """Each case in a process of its own: DeepSpeed is configured once."""
    if len(sys.argv) > 1:
        print(*measure(*CASES[int(sys.argv[1])]), file=sys.stderr, flush=True)
        os._exit(0)
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(("strategy", "bf16", "parameters", "bytes", "torch"))
    for number, case in enumerate(CASES):
        place = {**os.environ, "MASTER_PORT": str(29600 + number)}
        ended = subprocess.run([sys.executable, __file__, str(number)], env=place, capture_output=True, text=True)
        rows.writerow((*case, *ended.stderr.split()[-2:], torch.__version__))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
