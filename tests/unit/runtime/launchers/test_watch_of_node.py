"""The watch of a node outlives the rank that started it, and not the last one: a step would end a second later."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime import payload
from samples.scripts import Scripts, is_running, slurm_task, wait_until

# Each rank stays until its file is there.
PROGRAM = ("bash", "-c", 'until [ -e "$CTRAIN_RUN_DIR/leave$RANK" ]; do sleep 0.05; done')


def is_watch(pid: int) -> bool:
    try:
        return b"watch.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("last", [0, 1])
def test_the_last_rank_ends_the_watch(scripts: Scripts, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    text = payload.text
    monkeypatch.setattr(payload, "text", lambda name: text(name).replace("CT_WATCH_AFTER=5 ", "CT_WATCH_AFTER=-1 "))
    scripts.create(scripts.plan(*PROGRAM, ranks_per_node=2))
    ranks = [scripts.start("task.sh", **slurm_task(rank, size=2)) for rank in range(2)]
    wait_until(lambda: list(scripts.homes.glob("ctrain-*/.startup/.watch")))
    (file,) = scripts.homes.glob("ctrain-*/.startup/.watch")
    wait_until(lambda: file.read_text().strip() and is_watch(int(file.read_text())))
    watch = int(file.read_text())
    for rank in (1 - last, last):
        assert is_running(watch)
        (scripts.run / f"leave{rank}").touch()
        assert ranks[rank].wait(60) == 0
    assert not is_running(watch)
    assert not list(scripts.homes.iterdir())
    assert scripts.job_log() == ""
