"""Fills a folder until its files, packed in a SIF, take the given megabytes: `ballast.py MEGABYTES FOLDER`.

Half of what the SIF holds can't be packed further: so are the wheels, data and GPU programs of real images, which are
stored compressed. The other half is pieces of the programs and libraries that are installed where this runs.
"""

from __future__ import annotations

import random
import sys
import zlib
from pathlib import Path

BLOCK = 1 << 17  # squashfs packs blocks of this size, each for itself
PIECE = 1 << 20
SMALL, LARGE = 1 << 16, 1 << 28  # sizes of files: most up to the first, a few as large as the second
LARGE_EVERY = 400


def main(packed: int, target: Path) -> None:
    chance = random.Random(packed)
    programs = b"".join(path.read_bytes() for path in sorted(Path("/usr").rglob("*")) if is_program(path))
    samples = [programs[place : place + BLOCK] for place in range(0, len(programs), 16 * BLOCK)]
    shrinks_to = sum(len(zlib.compress(sample, 9)) for sample in samples) / sum(map(len, samples))
    left = {"dense": packed // 2, "code": int(packed / 2 / shrinks_to)}
    for number in range(sys.maxsize):
        kinds = [kind for kind, rest in left.items() if rest]
        if not kinds:
            break
        kind = chance.choice(kinds)
        size = min(LARGE if number % LARGE_EVERY == 0 else chance.randrange(SMALL), left[kind])
        left[kind] -= size
        file = target / f"{number // 1000}" / f"{number}.{kind}"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as out:
            for written in range(0, size, PIECE):
                count = min(PIECE, size - written)
                place = chance.randrange(len(programs) - PIECE)
                out.write(chance.randbytes(count) if kind == "dense" else programs[place : place + count])


def is_program(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size > BLOCK


if __name__ == "__main__":
    main(int(sys.argv[1]) * 1_000_000, Path(sys.argv[2]))
