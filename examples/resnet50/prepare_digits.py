"""Writes scikit-learn's handwritten digits as an ImageFolder tree: 1,797 small pictures to try train.py on.

Runs on any machine with scikit-learn and Pillow:  python prepare_digits.py DIR
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def write_tree(root: Path) -> dict[str, int]:
    """Writes train/ (80 %) and val/ with equal shares of every digit; the same files on every machine."""
    digits = load_digits()
    train, val = train_test_split(range(len(digits.target)), test_size=0.2, random_state=0, stratify=digits.target)
    for part, members in (("train", train), ("val", val)):
        for number in members:
            directory = root / part / str(digits.target[number])
            directory.mkdir(parents=True, exist_ok=True)
            grey = Image.fromarray((digits.images[number] * 255 / 16).astype(numpy.uint8))  # 8x8 values of 0 to 16
            grey.resize((32, 32), Image.Resampling.BILINEAR).convert("RGB").save(directory / f"{number:04d}.png")
    return {"train": len(train), "val": len(val)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", metavar="DIR", type=Path, help="the directory to create; must not exist")
    target = parser.parse_args().directory.absolute()
    if target.exists():
        raise SystemExit(f"prepare_digits.py: {target} exists; choose another directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Under another name until it is whole: a half-written set looks like a small one.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
        tree = Path(temporary) / "tree"
        counts = write_tree(tree)
        tree.rename(target)
    print(f"{target}: {counts['train']} images to train on, {counts['val']} to validate")


if __name__ == "__main__":
    main()
