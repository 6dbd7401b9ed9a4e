"""How runs end where this host sees their files through caches of 30 s, as by NFS (Debian's bindfs): no cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ctrain_runtime.run import events
from ctrain_runtime.run.conclude import conclude
from ctrain_runtime.run.logs import last_lines
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Outcome, Status
from samples.runs import StandIn, submitted, write_end, write_events, write_ranks

CACHES = "attr_timeout=30,entry_timeout=30,negative_timeout=30"
FAILED = Status("ended", "FAILED", Outcome.FAILED)


@dataclass(frozen=True)
class Watched:
    """A run as this host sees it, and its directory as nodes write to it."""

    run: Run
    written: Path

    def look(self) -> None:
        """As watching does: the sizes of files are remembered, and which are missing."""
        events.read_job_events(self.run.path)
        for node in (0, 1):
            events.read(self.run.path / "nodes" / f"{node}.jsonl")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    if os.geteuid() != 0 or not shutil.which("bindfs"):
        pytest.skip("needs root and bindfs: tests/cluster/install")
    written, seen = tmp_path / "written", tmp_path / "seen"
    for directory in (written, seen):
        directory.mkdir()
    subprocess.run(["bindfs", "-o", CACHES, str(written), str(seen)], check=True)
    try:
        run = submitted(seen / "one", StandIn(), nodes=2, ranks_per_node=2)
        yield Watched(run, written / "one")
    finally:
        subprocess.run(["umount", "--lazy", str(seen)], check=True)


def test_success_is_no_run_whose_ranks_never_started(watched: Watched) -> None:
    for node in (0, 1):
        (watched.written / "nodes" / f"{node}.jsonl").touch()
        events.read(watched.run.path / "nodes" / f"{node}.jsonl")
    write_ranks(watched.written, 0, 0, 0, 0)
    write_end(watched.written, 0)
    concluded = conclude(watched.run, Status("ended")).record
    assert concluded.exit and (concluded.exit.code, concluded.exit.reason) == (0, "completed")
    assert not concluded.doubtful


def test_a_failure_keeps_its_code(watched: Watched) -> None:
    write_ranks(watched.written, None, None, None, None)
    watched.look()
    for rank, code in enumerate((7, 143, 143, 143)):
        ended = {"what": "ended", "time": 110.0 + rank, "code": code, "node": f"gpu{rank // 2:02d}", "rank": rank}
        write_events(watched.written, ended, node=rank // 2)
    write_end(watched.written, 7)
    concluded = conclude(watched.run, FAILED).record
    assert concluded.exit
    assert (concluded.exit.code, concluded.exit.reason) == (7, "rank 0 on gpu00 failed first: exit code 7")
    assert not concluded.doubtful


def test_the_last_lines_of_the_failed_rank_are_shown_to_whoever_looked_at_its_log_before(watched: Watched) -> None:
    log = watched.written / "logs/rank0.log"
    log.write_text("begun\n")
    seen = watched.run.path / "logs/rank0.log"
    assert last_lines(seen, 0) == ["begun"]
    assert seen.stat().st_size == len("begun\n")  # whoever follows a log asks for its size alone, which is remembered
    with log.open("a") as file:
        file.write("last words\n")
    assert last_lines(seen, 0) == ["begun", "last words"]


def test_a_job_that_failed_before_any_rank_has_not_written_nothing(watched: Watched) -> None:
    watched.look()
    write_end(watched.written, 9)
    concluded = conclude(watched.run, FAILED).record
    assert concluded.exit and concluded.exit.code == 9
    assert "wrote nothing" not in concluded.exit.reason
