"""Lies beside programs of tests, in images: a rank stays until the scan has seen so many ranks join the world."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

PATIENCE_SECONDS = 240


def until_joined(ranks: int) -> None:
    nodes, end = Path(os.environ["CTRAIN_RUN_DIR"], "nodes"), time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        events = "".join(path.read_text() for path in nodes.glob("*.jsonl"))
        seen = re.findall(r'"what": "joined".*"ranks": \[([^]]+)\]', events)
        if sum(text.count(",") + 1 for text in seen) >= ranks:
            return
        time.sleep(0.2)
