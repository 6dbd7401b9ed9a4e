"""Runs in the image, on each rank of one job: examples/gpt by one strategy after the other.

    equality.py DIRECTORY FIRST:SETTING,... NAME:SETTING,... [+ DIRECTORY FIRST:SETTING,... NAME:SETTING,...]

Each case trains from the start, with a checkpoint half-way, and once more from the half-way checkpoint of the case
before it, in fp32. FIRST is the case whose checkpoint the first one resumes; its settings, KEY=VALUE, are those of all.
Case `single`, one rank without the others, begins (as FIRST) and resumes from the last. The losses, the norms of
gradients and the validation losses go into DIRECTORY/after-FIRST.json.
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
# Sequences; of 256, as by default, all validations take longer than all steps.
sys.modules["corpus"].VALIDATED = 32  # type: ignore[attr-defined]  # it is in the image
STEPS = int(os.environ.get("STEPS", "20"))
# The learning rate is the default one: at 0.003, of most seeds some steps have 20 or 60 times the gradient of others,
# which magnifies what bf16 rounds.
SETTINGS = [f"steps={STEPS}", f"save_every={STEPS // 2}", "warmup=4", "lr=0.001", "batch=16", "micro_batch=4"]
SETTINGS += ["layers=2", "heads=4", "width=64", "context=32", "sample=0", "clip=0.1", f"validate_every={STEPS // 2}"]
HALF = f"checkpoint/step-{STEPS // 2:08d}"


def losses(world: train.World, directory: Path, settings: list[str], start: Path | None = None) -> list[float]:
    curve, _ = train.train(train.parse([*SETTINGS, *settings]), world, directory, start)
    return curve


def single(
    world: train.World, directory: Path, start: Path | None = None, settings: tuple[str, ...] = ()
) -> list[float]:
    alone = train.World(0, 1, 0, world.device)
    curve = losses(alone, directory, [*settings, "strategy=single"], start) if world.rank == 0 else []
    train.torch.distributed.barrier()
    return curve


def compare(world: train.World, directory: Path, first: str, *cases: str) -> None:
    first, common = named(first)
    curves = {"single": {"whole": single(world, directory / "single", None, common)}} if first == "single" else {}
    before = first
    for name, own in map(named, cases):
        if "strategy=horovod" in own:
            import horovod.torch as hvd

            hvd.init()
        settings = [*common, *own]
        whole = losses(world, directory / name, settings)
        resumed = losses(world, directory / f"{name}-resumed", settings, directory / before / HALF)
        if "strategy=horovod" in own:
            hvd.shutdown()  # else its thread polls through all cases that follow
        curves[name] = {"whole": whole, "resumed": resumed, "from": before}
        before = name if "bf16=true" not in own else before
    resumed = single(world, directory / "single-resumed", directory / before / HALF, common)
    curves["single"] = {**curves.get("single", {}), "resumed": resumed, "from": before}
    if world.rank == 0:
        for name, curve in curves.items():
            lines = [*map(json.loads, (directory / name / "metrics.jsonl").read_text().splitlines())]
            curve["norms"] = [line["grad_norm"] for line in lines]
            curve["validation"] = [line["validation_loss"] for line in lines if "validation_loss" in line]
        (directory / f"after-{first}.json").write_text(json.dumps(curves))


def named(case: str) -> tuple[str, tuple[str, ...]]:
    name, _, settings = case.partition(":")
    return name, tuple(filter(None, settings.split(",")))


def main() -> int:
    world, words = train.begin("torch"), sys.argv[1:]
    while words:
        end = words.index("+") if "+" in words else len(words)
        directory, *cases = words[:end]
        compare(world, Path(directory), *cases)
        words = words[end + 1 :]
    return 0


if __name__ == "__main__":
    train.finish(main)
