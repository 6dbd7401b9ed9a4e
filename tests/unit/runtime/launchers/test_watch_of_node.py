"""The watch of a node outlives the rank that started it, and not the last one: a step would end a second later."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime import payload
from samples.programs import write_program
from samples.scripts import Scripts, is_running, slurm_task, wait_until

# Each rank stays until its file is there.
PROGRAM = ("bash", "-c", 'until [ -e "$CTRAIN_RUN_DIR/leave$RANK" ]; do sleep 0.05; done')


# A python3 that is slow to start. It is asked first whether it is new enough. The folder goes when the test has passed.
SLOW = """#!/bin/bash
while [ -d "${0%/*}" ] && [ ! -e "${0%/*}/go" ]; do touch "${0%/*}/asked-$PPID"; sleep 0.05; done
exec python3 "$@"
"""


def is_watch(pid: int) -> bool:
    try:
        return b"watch.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("slow", [False, True])
def test_the_last_rank_ends_the_watch(scripts: Scripts, monkeypatch: pytest.MonkeyPatch, last: int, slow: bool) -> None:
    first = f"CT_PYTHONS=({scripts.folder}/slow " if slow else "CT_PYTHONS=("
    now = {"CT_WATCH_AFTER=5 ": "CT_WATCH_AFTER=-1 ", "CT_PYTHONS=(": first}
    text = payload.text
    monkeypatch.setattr(payload, "text", lambda name: replaced(text(name), now))
    write_program(scripts.folder / "slow", SLOW)
    scripts.create(scripts.plan(*PROGRAM, ranks_per_node=2))
    ranks = [scripts.start("task.sh", **slurm_task(rank, size=2)) for rank in range(2)]
    wait_until(lambda: list(scripts.homes.glob("ctrain-*/.startup/.watch")))
    (file,) = scripts.homes.glob("ctrain-*/.startup/.watch")
    wait_until(lambda: file.read_text().strip() and (slow or is_watch(int(file.read_text()))))
    wait_until(lambda: not slow or (scripts.folder / f"asked-{file.read_text().strip()}").exists())
    watch = int(file.read_text())
    for rank in (1 - last, last):
        assert is_running(watch)
        (scripts.run / f"leave{rank}").touch()
        assert ranks[rank].wait(60) == 0
    assert not is_running(watch)
    (scripts.folder / "go").touch()
    assert not list(scripts.homes.iterdir())
    assert scripts.job_log() == ""
