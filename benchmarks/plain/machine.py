"""What a machine can reach: operations per second of a matrix product, and pictures per second that one of its cores
decodes and augments for examples/resnet50.

    python machine.py PICTURES

Writes JPEG pictures as an ImageFolder tree to /data, for this and for trainings, and prints one object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy
import torch
from PIL import Image

sys.path.insert(1, "/opt/ctrain/examples/common")
import images
from example import World

ROOT = Path("/data")
# 100 kB each; ImageNet's have 110 kB on average
HEIGHT, WIDTH, QUALITY, NOISE = 375, 500, 90, 18
FILES = 64  # that differ; the others are links to them, since all are in the page cache anyway
BATCH, BATCHES = 32, 4
MATRIX, PRODUCTS = 2048, 5


def write_pictures(count: int) -> None:
    random = numpy.random.default_rng(0)
    for part, number in (*(("train", number) for number in range(count)), *(("val", number) for number in range(16))):
        path = ROOT / part / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number >= FILES:
            os.link(path.with_name(f"{number % FILES}.jpg"), path)
            continue
        blobs = Image.fromarray(random.integers(256, size=(12, 16, 3), dtype=numpy.uint8))
        smooth = numpy.asarray(blobs.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))
        pixels = smooth + random.normal(0, NOISE, smooth.shape)
        Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8)).save(path, quality=QUALITY)


def images_per_second() -> float:
    parser = argparse.ArgumentParser()
    images.add_options(parser)
    options = parser.parse_args(["--augment=full", f"--batch-size={BATCH}", "--workers=0"])  # 0: in this process
    train, _ = images.make_loaders(images.load(options, 1), options, World(0, 1, 0, torch.device("cpu")))
    batches = iter(train)
    next(batches)
    began = time.monotonic()
    for _ in range(BATCHES):
        next(batches)
    return BATCHES * BATCH / (time.monotonic() - began)


def operations_per_second() -> float:
    """Of the fastest product of two square matrices in single precision, on one core."""
    matrix, times = torch.ones(MATRIX, MATRIX), []
    for _ in range(PRODUCTS):
        began = time.monotonic()
        torch.mm(matrix, matrix)
        times.append(time.monotonic() - began)
    return 2 * MATRIX**3 / min(times)


def main() -> None:
    write_pictures(max(int(sys.argv[1]), BATCH * (BATCHES + 1)))
    torch.set_num_threads(1)
    gpus = torch.cuda.device_count()
    found = {"gpu": torch.cuda.get_device_name() if gpus else "", "devices": gpus or len(os.sched_getaffinity(0))}
    found |= {"operations_per_second": operations_per_second(), "images_per_second": images_per_second()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
