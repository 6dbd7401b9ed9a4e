"""Lies beside programs of tests, in images: a rank without torch, whose import takes seconds of a core.

It prints what it knows of itself, waits for the others, and fails with code 9 if it is the last one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
words = ("RANK", rank, size, os.environ["LOCAL_RANK"], sys.argv[1:])
# In one write: the ranks of a node may share a log.
os.write(1, (" ".join(map(str, words)) + "\n").encode())
up = Path(os.environ["CTRAIN_RUN_DIR"], "up")
up.mkdir(exist_ok=True)
up.joinpath(str(rank)).touch()
while len(list(up.iterdir())) < size:
    time.sleep(0.1)
sys.exit(9 if rank == size - 1 else 0)
