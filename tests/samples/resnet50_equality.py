"""Runs in the image, on each rank of one job: examples/resnet50 by both strategies, also stopped and resumed, and with
the options that make it fast on GPUs. Here, to compile means only to trace: to make C++ of the graph takes minutes.

With BOTH_WAYS in the environment, Horovod also resumes what DDP has saved.

Each training has a directory in that of the run, with its metrics.jsonl. result.json has the exit codes, and what one
process alone finds of the validation images.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, "/opt/ctrain/examples/resnet50")
import train  # type: ignore[import-not-found]  # it is in the image

torch, run_directory = train.torch, Path(os.environ["CTRAIN_RUN_DIR"])
torch.compile = functools.partial(torch.compile, backend="eager")
SETTINGS = ["--epochs=2", "--checkpoint-every=100", "--batch-size=4", "--augment=full", "--label-smoothing=0.1"]
SETTINGS += ["--image-size=128"]  # of 224, as by default, the steps take three times as long
FAST = ["--compile", "--precision=bf16", "--fp16-allreduce"]


def run(world: train.World, name: str, strategy: str, *more: str, resume: str = "", stop: bool = False) -> int:
    """Train; if `stop`, as if the last rank had got a signal. The exit code."""
    os.environ["CTRAIN_RUN_DIR"] = str(run_directory / name)
    os.environ["CTRAIN_RESUME"] = str(run_directory / resume / "checkpoint") if resume else ""
    train.stopping = lambda: stop and world.rank == world.size - 1
    options = train.parse_options([*SETTINGS, f"--strategy={strategy}", *more])
    return int(train.Trainer(options, world).train())


@torch.no_grad()
def validate_alone(name: str) -> list[float]:
    """Loss and accuracy of a run's last network, and the number of images: all of them at once, by one process."""
    dataset = train.images.load(train.parse_options(SETTINGS), 1).val
    images, labels = zip(*(dataset[index] for index in range(len(dataset))))
    model = train.resnet50(num_classes=3).eval()
    model.load_state_dict(torch.load(max((run_directory / name / "checkpoint").glob("*.pt")))["model"])
    outputs, truth = model(train.images.Normalize()(torch.stack(images))), torch.tensor(labels)
    right = (outputs.argmax(dim=1) == truth).double().mean()
    return [train.cross_entropy(outputs, truth).item(), right.item(), len(labels)]


def main() -> int:
    import horovod.torch as hvd

    world = train.begin("torch")
    hvd.init()
    codes = {"horovod": run(world, "horovod", "horovod")}
    for first, second in (("horovod", "ddp"), ("ddp", "horovod"))[: 2 if "BOTH_WAYS" in os.environ else 1]:
        codes[f"{first}-stopped"] = run(world, f"{first}-stopped", first, stop=True)
        codes[f"{second}-resumed"] = run(world, f"{second}-resumed", second, resume=f"{first}-stopped")
    for strategy in ("horovod", "ddp"):
        codes[f"{strategy}-fast"] = run(world, f"{strategy}-fast", strategy, *FAST, stop=True)
    codes["synthetic"] = run(world, "synthetic", "ddp", "--synthetic", "--image-size=32", stop=True)
    if world.rank == 0:
        result = {"codes": codes, "alone": validate_alone("horovod")}
        (run_directory / "result.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    train.finish(main)
