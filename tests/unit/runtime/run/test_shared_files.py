"""Runs on a file system whose clients remember sizes of files, and missing names, as those of NFS do."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.run import directory, events, record, shared_files
from ctrain_runtime.run.conclude import conclude
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.events import Event
from ctrain_runtime.run.follow import Metrics, Tail
from ctrain_runtime.run.pick_up import pick_up, refresh
from ctrain_runtime.run.record import Exit
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Outcome, Status
from samples.plans import a_launch, a_plan
from samples.runs import StandIn, submitted, write_end, write_ranks

FAILED = Status("ended", "FAILED", Outcome.FAILED)
SIZE = {"nodes": 2, "ranks_per_node": 2}
HOUR = 3600.0


class Cache:
    """What this client remembers of the files of events, until it is made to ask anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lasting = False  # it cannot be made to
        self._seen: dict[Path, list[Event]] = {}
        self._read = events.read
        monkeypatch.setattr(events, "read", self.read)
        monkeypatch.setattr(shared_files, "renew", self.renew)
        monkeypatch.setattr(shared_files, "has_caches", lambda _: True)
        monkeypatch.setattr(shared_files, "POLL_SECONDS", 0.001)
        monkeypatch.setattr(shared_files, "CACHE_SECONDS", 0.05)

    def read(self, path: Path) -> list[Event]:
        return self._seen.setdefault(path, self._read(path))

    def renew(self, paths: Iterable[Path]) -> None:
        if not self.lasting:
            for path in paths:
                self._seen.pop(path, None)

    def expire(self) -> None:
        self._seen.clear()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Cache:
    return Cache(monkeypatch)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    scheduler = StandIn(FAILED)
    run = submitted(tmp_path / "one", scheduler, **SIZE)
    monkeypatch.setattr(schedulers, "get", lambda _: scheduler)
    return run


def look(run: Run) -> None:
    """As watching does, before the job has written anything."""
    events.read_job_events(run.path)
    events.read_node_events(run.path)


def test_files_of_nodes_exist_before_the_job_does(tmp_path: Path) -> None:
    plan = a_plan(run_directory=tmp_path / "one", **SIZE)
    run = directory.create(a_launch(plan))
    for name in ("events.jsonl", "nodes/0.jsonl", "nodes/1.jsonl"):
        assert (run / name).read_bytes() == b""
    assert not (run / "nodes/2.jsonl").exists()
    assert not list((run / "logs").iterdir())  # a log shows that a rank has started
    assert not (run / "metrics.jsonl").exists()  # the program's


def test_a_missing_name_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Path] = []
    real = Path.open

    def note(self: Path, *arguments: Any, **named: Any) -> Any:
        looks.append(self)
        return real(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", note)
    metrics, log = tmp_path / "metrics.jsonl", tmp_path / "logs/rank0.log"
    readers = (Metrics(metrics), Tail(log))
    assert [reader.read() for reader in readers] == [[], ""]
    assert not looks
    log.parent.mkdir()
    log.write_text("one\n")
    metrics.write_text('{"step": 1}\n')
    assert [reader.read() for reader in readers] == [[{"step": 1}], "one\n"]


def test_success_is_no_run_whose_ranks_never_started(run: Run, cache: Cache) -> None:
    look(run)
    write_ranks(run.path, 0, 0, 0, 0)
    write_end(run.path, 0)
    cache.renew([run.path / "events.jsonl"])
    concluded = conclude(run, Status("ended")).record
    assert concluded.exit == Exit(0, "completed", "program", Ending.COMPLETED)
    assert not concluded.doubtful


@pytest.mark.usefixtures("cache")
def test_a_failure_keeps_its_code_and_its_rank(run: Run) -> None:
    look(run)
    write_ranks(run.path, 7, 143, 143, 143)
    write_end(run.path, 7)
    concluded = conclude(run, FAILED).record
    assert concluded.exit == Exit(7, "rank 0 on gpu00 failed first: exit code 7", "program", Ending.FAILED)
    assert not concluded.doubtful


def test_a_doubtful_record_is_corrected_by_a_later_look(run: Run, cache: Cache) -> None:
    cache.lasting = True
    look(run)
    write_ranks(run.path, 9, 9, 9, 9)
    write_end(run.path, 9)
    first = conclude(run, FAILED).record
    assert first.exit and first.exit.code == 1
    assert first.doubtful and record.load(run.path).doubtful
    cache.expire()
    status, conclusion = refresh(pick_up(run.path))
    assert status.phase == "ended" and conclusion
    assert conclusion.record.exit == Exit(9, "rank 0 on gpu00 failed first: exit code 9", "program", Ending.FAILED)
    assert conclusion.failed
    assert record.load(run.path) == conclusion.record
    assert not conclusion.record.doubtful


@pytest.mark.usefixtures("cache")
def test_doubt_ends_with_the_life_of_caches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was killed with all it had started never writes what is missing."""
    first = conclude(run, FAILED).record
    assert first.doubtful
    scheduler = run.scheduler
    assert isinstance(scheduler, StandIn)
    scheduler.calls.clear()
    assert refresh(pick_up(run.path))[1] is not None
    assert scheduler.calls == []  # neither asked nor told to cancel again
    monkeypatch.setattr(shared_files, "CACHE_SECONDS", HOUR)
    record.save(replace(first, end=record.iso(time.time() - 2 * HOUR)))
    _, conclusion = refresh(pick_up(run.path))
    assert conclusion
    assert conclusion.record.exit == first.exit
    assert not conclusion.record.doubtful


@pytest.mark.usefixtures("cache")
def test_a_later_look_without_new_files_changes_neither_the_end_nor_its_cause(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that has forgotten the job names no cause: another look is none, either."""
    write_ranks(run.path, None, None, None, None)
    first = conclude(run, Status("ended", outcome=Outcome.UNKNOWN)).record
    assert first.exit and first.exit.ending is Ending.UNKNOWN
    assert first.doubtful
    monkeypatch.setattr(shared_files, "CACHE_SECONDS", HOUR)
    end = record.iso(time.time() - HOUR / 2)
    earlier = replace(first, end=end, attempts=(replace(first.attempts[-1], end=end),))
    record.save(earlier)
    _, conclusion = refresh(pick_up(run.path))
    assert conclusion
    assert conclusion.record == earlier
    assert not conclusion.failed


@pytest.mark.usefixtures("cache")
def test_the_record_of_a_run_that_was_moved_is_left_alone(run: Run) -> None:
    first = conclude(run, FAILED).record
    moved = run.path.rename(run.path.with_name("moved"))
    _, conclusion = refresh(pick_up(moved))
    assert conclusion and conclusion.record == replace(first, doubtful=False)
    assert not run.path.exists()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.NODE_FAILURE, Outcome.CANCELLED_BY_USER])
def test_what_ended_a_job_from_outside_is_no_doubt(run: Run, monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> None:
    monkeypatch.setattr(shared_files, "CACHE_SECONDS", HOUR)  # it would be waited for in vain
    assert not conclude(run, Status("ended", "X", outcome)).record.doubtful


@pytest.mark.usefixtures("cache")
def test_a_healthy_run_waits_for_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("waited")

    write_ranks(run.path, 0, 0, 0, 0)
    write_end(run.path, 0)
    for name in ("renew", "time"):
        monkeypatch.setattr(shared_files, name, fail if name == "renew" else Clock(fail))
    assert conclude(run, Status("ended")).record.exit == Exit(0, "completed", "program", Ending.COMPLETED)


class Clock:
    """The module `time`, whose sleep is `sleep`."""

    def __init__(self, sleep: Any) -> None:
        self.sleep, self.monotonic = sleep, time.monotonic


def test_a_file_system_without_such_caches_is_not_waited_for_long(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "has_caches", lambda _: False)
    monkeypatch.setattr(shared_files, "CACHE_SECONDS", HOUR)
    monkeypatch.setattr(shared_files, "SYNC_SECONDS", 0.01)
    assert not conclude(run, FAILED).record.doubtful


def test_sizes_are_asked_for_anew_without_a_change(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    path.touch(mode=0o640)
    before = path.stat()
    shared_files.renew([path, tmp_path / "missing"])
    after = path.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_size) == (before.st_mode, before.st_mtime_ns, before.st_size)
    assert after.st_ctime_ns >= before.st_ctime_ns
    assert list(tmp_path.iterdir()) == [path]
