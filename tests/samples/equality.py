"""Runs in the image, on each rank of one job: examples/gpt by one strategy after the other.

    equality.py DIRECTORY FIRST NAME:KEY=VALUE,KEY=VALUE...      FIRST: the case whose checkpoint the first one resumes

Each case trains from the start, with a checkpoint half-way, and once more from the half-way checkpoint of the case
before it, in fp32. Case `single`, one rank without the others, begins (as FIRST) and resumes from the last. The losses,
the norms of gradients and the validation losses go into DIRECTORY/after-FIRST.json.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, "/opt/ctrain/examples/gpt")
import train  # type: ignore[import-not-found]  # it is in the image

# What a strategy does around compiled blocks is compared; to make C++ of them takes a minute.
train.torch.compile = functools.partial(train.torch.compile, backend="eager")
STEPS = int(os.environ.get("STEPS", "20"))
# The learning rate is the default one: at 0.003, of most seeds some steps have 20 or 60 times the gradient of others,
# which magnifies what bf16 rounds.
SETTINGS = [f"steps={STEPS}", f"save_every={STEPS // 2}", "warmup=4", "lr=0.001", "batch=16", "micro_batch=4"]
SETTINGS += ["layers=2", "heads=4", "width=64", "context=32", "sample=0", "clip=0.1", f"validate_every={STEPS // 2}"]
SETTINGS += os.environ.get("MORE", "").split()
HALF = f"checkpoint/step-{STEPS // 2:08d}"


def losses(world: train.World, directory: Path, settings: list[str], start: Path | None = None) -> list[float]:
    curve, _ = train.train(train.parse([*SETTINGS, *settings]), world, directory, start)
    return curve


def single(world: train.World, directory: Path, start: Path | None = None) -> list[float]:
    alone = train.World(0, 1, 0, world.device)
    curve = losses(alone, directory, ["strategy=single"], start) if world.rank == 0 else []
    train.torch.distributed.barrier()
    return curve


def main() -> int:
    directory, before, world = Path(sys.argv[1]), sys.argv[2], train.begin("torch")
    curves = {"single": {"whole": single(world, directory / "single")}} if before == "single" else {}
    for case in sys.argv[3:]:
        name, _, settings = case.partition(":")
        if "horovod" in settings:
            import horovod.torch as hvd

            hvd.init()
        whole = losses(world, directory / name, settings.split(","))
        resumed = losses(world, directory / f"{name}-resumed", settings.split(","), directory / before / HALF)
        curves[name] = {"whole": whole, "resumed": resumed, "from": before}
        before = name if "bf16" not in settings else before
    resumed = single(world, directory / "single-resumed", directory / before / HALF)
    curves["single"] = {**curves.get("single", {}), "resumed": resumed, "from": before}
    if world.rank == 0:
        for name, curve in curves.items():
            lines = [*map(json.loads, (directory / name / "metrics.jsonl").read_text().splitlines())]
            curve["norms"] = [line["grad_norm"] for line in lines]
            curve["validation"] = [line["validation_loss"] for line in lines if "validation_loss" in line]
        (directory / f"after-{sys.argv[2]}.json").write_text(json.dumps(curves))
    return 0


if __name__ == "__main__":
    train.finish(main)
