from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ctrain_runtime.base.command import run_logged


def test_output_and_code(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_logged(["/bin/sh", "-c", "echo out; echo err >&2; pwd; exit 3"], log, cwd=tmp_path) == 3
    assert log.read_text() == f"out\nerr\n{tmp_path}\n"


def test_an_interrupt_ends_everything_that_was_started(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def interrupt() -> None:
        if len(log.read_text().split()) == 2:
            raise KeyboardInterrupt

    script = "trap '' TERM; sleep 60 & echo $! $$; trap 'exit 1' TERM; wait"
    with pytest.raises(KeyboardInterrupt):
        run_logged(["/bin/sh", "-c", script], log, tick=interrupt)
    for number in map(int, log.read_text().split()):
        assert not _runs(number), f"process {number} still runs"


def _runs(number: int) -> bool:
    for _ in range(50):  # init reaps orphans in its own time
        try:
            os.kill(number, 0)
            state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True
