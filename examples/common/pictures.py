"""The task of the small examples: 1,797 handwritten digits. For any framework: as arrays."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from settings import OptionParser

SIZE = 32


def make_parser(description: str) -> argparse.ArgumentParser:
    parser = OptionParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, default="/data", metavar="DIR", help="directory with train/ and val/")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="pictures per rank and step")
    return parser


def load(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (N, 1, SIZE, SIZE), and labels (N), of a directory per digit. Ends the program if it has none."""
    digits = sorted(path for path in directory.glob("*") if path.is_dir())
    files = [(file, label) for label, digit in enumerate(digits) for file in sorted(digit.glob("*.png"))]
    if not files:
        advice = "Pass --data DIR, as made by examples/resnet50/prepare_digits.py"
        raise SystemExit(f"{directory} has no pictures in a directory per digit. {advice}")
    pictures = np.stack([_read(file) for file, _ in files])
    return pictures, np.array([label for _, label in files])


def _read(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        grey = np.asarray(image.convert("L").resize((SIZE, SIZE), Image.BILINEAR), np.float32)
    return (grey[None] / 255 - 0.3) / 0.35  # their mean and standard deviation
