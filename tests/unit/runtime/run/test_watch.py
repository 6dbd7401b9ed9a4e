from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.run import follow
from ctrain_runtime.run import watch as module
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.submit import Run
from ctrain_runtime.run.watch import BACKOFF, COUNT_SHARE, LastLook, Pause, watch
from ctrain_runtime.schedulers.protocol import Outcome, Status
from samples.runs import StandIn, submitted, write_end, write_events, write_ranks


class Clock:
    """Time that passes only while something waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.at: list[tuple[float, Any]] = []  # what happens when

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [happen for time, happen in self.at if time <= self.now]
        self.at = [(time, happen) for time, happen in self.at if time > self.now]
        for happen in due:
            happen()

    def later(self, seconds: float, happen: Any) -> None:
        self.at.append((self.now + seconds, happen))


class Observer:
    """Keeps what it is shown, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self.seen.append((name, *values))

    def of(self, name: str) -> list[Any]:
        return [value for kind, *values in self.seen if kind == name for value in values]


class NoSignals(Interrupts):
    """Interrupts that a test sets itself; waiting moves the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, seconds: float) -> None:
        self._clock.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def interrupts(clock: Clock) -> NoSignals:
    return NoSignals(clock)


@pytest.fixture
def scheduler() -> StandIn:
    return StandIn(Status("waiting", "Priority"), Status("running", "R"))


@pytest.fixture
def run(tmp_path: Path, scheduler: StandIn) -> Run:
    return submitted(tmp_path / "one", scheduler, nodes=2, ranks_per_node=2)


def test_a_run_to_its_end(run: Run, clock: Clock, interrupts: NoSignals) -> None:
    observer = Observer()

    def appear() -> None:
        write_events(run.path, {"what": "started", "stage": "before", "job": "7", "time": 1.0})
        write_ranks(run.path, None, None, None, None)

    def speak() -> None:
        (run.path / "logs/rank0.log").write_text("hello\n")
        (run.path / "metrics.jsonl").write_text('{"step": 1}\n')

    clock.later(5, appear)
    clock.later(8, speak)
    clock.later(20, lambda: write_end(run.path, 0))
    assert watch(run, observer, interrupts) == LastLook(Status("ended"), job_is_over=True)
    assert [status.phase for status in dict.fromkeys(observer.of("status"))] == ["waiting", "running", "ended"]
    assert "".join(observer.of("output")) == "hello\n"
    assert [records for records in observer.of("metrics") if records] == [[{"step": 1}]]
    assert ("ranks", 4, 4, "rank") in observer.seen


def write_attempt(run: Path, attempt: int, code: int) -> None:
    """What one of four ranks writes."""
    who = {"rank": 3, "node": "gpu01", "attempt": attempt}
    write_events(
        run, {"what": "started", "time": 100, **who}, {"what": "ended", "time": 110, "code": code, **who}, node=1
    )


def write_restart(run: Path, attempt: int, code: int) -> None:
    """What becomes of an attempt, and of the events of its end."""
    write_attempt(run, attempt - 1, code)
    write_events(run, {"what": "restarted", "attempt": attempt, "time": 115, "message": "the start"})


def test_restarts_are_shown_where_the_output_has_them(
    tmp_path: Path, scheduler: StandIn, interrupts: NoSignals
) -> None:
    """Of a run that has long ended."""
    run = submitted(tmp_path / "one", scheduler, nodes=2, ranks_per_node=2, restarts=3)
    for attempt, code in ((1, 3), (2, 4)):
        write_restart(run.path, attempt, code)
    write_attempt(run.path, 2, 0)
    write_end(run.path, 0)
    log = "one\n\n--- attempt 1 ---\ntwo\n\n--- attempt 2 ---\nthree\n"
    (run.path / "logs/rank0.log").write_text(log)
    observer = Observer()
    watch(run, observer, interrupts)
    shown = [(name, *values) for name, *values in observer.seen if name in ("output", "restarted") and values != [""]]
    assert [(name, getattr(values[0], "reason", values[0])) for name, *values in shown] == [
        ("output", "one\n"),
        ("restarted", "rank 3 on gpu01 failed: exit code 3"),
        ("output", "two\n"),
        ("restarted", "rank 3 on gpu01 failed: exit code 4"),
        ("output", "three\n"),
    ]
    assert {values[1] for name, *values in shown if name == "restarted"} == {3}


def test_a_restart_is_shown_before_its_ranks_are_up(
    tmp_path: Path, scheduler: StandIn, clock: Clock, interrupts: NoSignals
) -> None:
    run = submitted(tmp_path / "one", scheduler, nodes=2, ranks_per_node=2, restarts=1)
    write_events(run.path, {"what": "started", "stage": "before", "job": "7", "time": 1.0})
    write_attempt(run.path, 0, 3)
    (run.path / "logs/rank0.log").write_text("one\n")
    clock.later(5, lambda: write_restart(run.path, 1, 3))
    clock.later(9, lambda: write_attempt(run.path, 1, 0))
    clock.later(12, lambda: (run.path / "logs/rank0.log").write_text("one\n\n--- attempt 1 ---\ntwo\n"))
    clock.later(20, lambda: write_end(run.path, 0))
    observer = Observer()
    watch(run, observer, interrupts)
    kept = [(name, *values) for name, *values in observer.seen if name in ("output", "restarted", "ranks")]
    again = next(number for number, (name, *_) in enumerate(kept) if name == "restarted")
    assert ("ranks", 0, 4, "rank") in kept[again:]
    assert ("ranks", 1, 4, "rank") in kept[again:]
    assert [name for name, *_ in kept].count("restarted") == 1
    assert "".join(observer.of("output")) == "one\ntwo\n"


def test_silence_after_a_restart_shows_nothing_of_the_attempt_before(
    tmp_path: Path, scheduler: StandIn, clock: Clock, interrupts: NoSignals
) -> None:
    """With torchrun, the job's log then has several lines for each rank of a node."""
    run = submitted(tmp_path / "one", scheduler, nodes=2, ranks_per_node=2, restarts=1)
    write_events(run.path, {"what": "started", "stage": "before", "job": "7", "time": 1.0})
    (run.path / "logs/job.log").write_text("closing signal SIGTERM\n" * 64 + "\n--- attempt 1 ---\nno address\n")
    write_restart(run.path, 1, 3)
    clock.later(60, lambda: write_end(run.path, 1))
    observer = Observer()
    watch(run, observer, interrupts)
    assert observer.of("job_log") == ["no address"]


def test_a_program_may_print_what_looks_like_a_restart(run: Run, interrupts: NoSignals) -> None:
    (run.path / "logs/rank0.log").write_text("a\n\n--- attempt 1 ---\n")
    write_end(run.path, 0)
    observer = Observer()
    watch(run, observer, interrupts)
    assert "".join(observer.of("output")) == "a\n\n--- attempt 1 ---\n"


@pytest.mark.parametrize(
    ("last", "written", "lines"),
    [
        (None, ["hung", "went on", "hung"], ["hung: 1", "goes on 2", "hung: 3"]),
        (20, ["hung", "went on", "hung"], ["hung: 3"]),
        (20, ["hung", "went on"], []),
        (20, [], []),
    ],
)
def test_whoever_comes_later_sees_the_hang_that_goes_on(
    run: Run, interrupts: NoSignals, clock: Clock, last: Optional[int], written: list[str], lines: list[str]
) -> None:
    def happen(*whats: str) -> None:
        write_events(
            run.path, *({"stage": "watch", "what": what, "message": str(n)} for n, what in enumerate(whats, 1))
        )

    happen(*written)
    clock.later(5, lambda: happen("hung"))
    clock.later(10, lambda: write_end(run.path, 0))
    observer = Observer()
    watch(run, observer, interrupts, last)
    assert observer.of("hang") == [*lines, "hung: 1"]


def test_a_long_log_is_shown_in_pieces(run: Run, interrupts: NoSignals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PIECE_BYTES", 4)
    observer = Observer()
    (run.path / "logs/rank0.log").write_text("a long log\n")
    write_ranks(run.path, 0, 0, 0, 0)
    write_end(run.path, 0)
    assert watch(run, observer, interrupts).job_is_over
    assert observer.of("output") == ["a lo", "ng l", "og\n"]


def test_a_message_of_the_preflight_is_shown_once_whichever_node_writes_first(
    run: Run, clock: Clock, interrupts: NoSignals
) -> None:
    def says(message: str, node: int) -> None:
        write_events(run.path, {"what": "failed", "stage": "preflight", "message": message}, node=node)

    clock.later(1, lambda: says("from the second", 1))
    clock.later(5, lambda: says("from the first", 0))
    clock.later(9, lambda: write_end(run.path, 1))
    observer = Observer()
    watch(run, observer, interrupts)
    assert observer.of("preflight") == ["from the second", "from the first"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[tuple[str, float]]:
    """When the events of which file are read; of a node, that takes a second."""
    read, done = module.events.read, []

    def slow(path: Path) -> Any:
        done.append((path.name, clock.now))
        clock.now += path.parent.name == "nodes"
        return read(path)

    monkeypatch.setattr(module.events, "read", slow)
    return done


def test_a_node_whose_ranks_are_all_up_is_not_read_again(
    run: Run, clock: Clock, interrupts: NoSignals, reads: list[tuple[str, float]]
) -> None:
    write_ranks(run.path, None, None, None)
    clock.later(100, lambda: write_ranks(run.path, None, None, None, None))
    clock.later(200, lambda: write_end(run.path, 0))
    observer = Observer()
    watch(run, observer, interrupts)
    assert [name for name, _ in reads].count("0.jsonl") == 1
    assert [name for name, _ in reads].count("1.jsonl") > 2
    assert ("ranks", 4, 4, "rank") in observer.seen


def test_counting_ranks_takes_a_share_of_the_time_however_slow_the_files_are(
    run: Run, clock: Clock, interrupts: NoSignals, reads: list[tuple[str, float]]
) -> None:
    write_ranks(run.path, None, None, None)
    clock.later(100, lambda: write_end(run.path, 0))
    watch(run, Observer(), interrupts)
    counted = [at for name, at in reads if name == "1.jsonl"]
    assert len(counted) > 2
    assert all(later - earlier > 0.9 / COUNT_SHARE for earlier, later in zip(counted, counted[1:]))


def test_the_last_output_is_shown_when_the_end_comes_with_it(run: Run, interrupts: NoSignals) -> None:
    (run.path / "logs/rank0.log").write_text("all at once\n")
    write_end(run.path, 0)
    observer = Observer()
    watch(run, observer, interrupts)
    assert observer.of("output") == ["all at once\n"]


def test_a_long_run_asks_its_scheduler_ever_less_often(
    run: Run, scheduler: StandIn, clock: Clock, interrupts: NoSignals
) -> None:
    clock.later(3600, lambda: write_end(run.path, 0))
    watch(run, Observer(), interrupts)
    assert scheduler.calls.count("status") < 150  # one every 30 s


def test_silence_shows_what_the_jobs_log_says(run: Run, clock: Clock, interrupts: NoSignals) -> None:
    (run.path / "logs/job.log").write_text("srun: Job step creation temporarily disabled, retrying\n\n")
    clock.later(60, lambda: write_end(run.path, 1))
    observer = Observer()
    watch(run, observer, interrupts)
    assert observer.of("job_log") == ["srun: Job step creation temporarily disabled, retrying"]


def test_cancel_comes_before_any_word_of_it(run: Run, scheduler: StandIn, clock: Clock, interrupts: NoSignals) -> None:
    class Strict(Observer):
        def cancelling(self, name: str) -> None:
            assert "cancel" in scheduler.calls
            assert (run.path / "cancelled").exists()
            self.seen.append(("cancelling", name))

    observer = Strict()
    clock.later(3, lambda: setattr(interrupts, "cancel", True))
    assert watch(run, observer, interrupts) == LastLook(
        Status("ended", "X", Outcome.CANCELLED_BY_USER), job_is_over=True
    )
    assert scheduler.calls.count("cancel") == 1
    assert observer.of("cancelling") == ["job 7"]


def test_a_cancel_that_fails_is_shown_and_tried_again(
    run: Run, scheduler: StandIn, clock: Clock, interrupts: NoSignals
) -> None:
    scheduler.refusals = [SchedulerError("scancel: timed out"), SchedulerError("scancel: timed out")]
    observer = Observer()
    clock.later(3, lambda: setattr(interrupts, "cancel", True))
    assert watch(run, observer, interrupts).job_is_over
    assert scheduler.calls.count("cancel") == 3
    assert observer.of("cancelling") == ["job 7"]
    assert observer.of("warn") == ["scancel: timed out; trying again"]  # once


def test_a_job_that_cannot_be_cancelled_is_not_called_gone(run: Run, scheduler: StandIn, interrupts: NoSignals) -> None:
    scheduler.refusals = [SchedulerError("no")] * 100
    interrupts.cancel = True
    assert not watch(run, Observer(), interrupts).job_is_over
    assert scheduler.calls.count("cancel") > 5
    assert not (run.path / "cancelled").exists(), "what ends it later was not the user"


def test_a_cancelled_job_that_takes_for_ever_to_end_is_left(run: Run, interrupts: NoSignals) -> None:
    """A dead node keeps a job "completing" indefinitely."""

    class Completing(StandIn):
        def cancel(self, *_: object) -> None:
            self.calls.append("cancel")

    scheduler = Completing()
    interrupts.cancel = True
    stuck = dataclasses.replace(run, scheduler=scheduler)
    assert watch(stuck, Observer(), interrupts) == LastLook(Status("running", "R"), job_is_over=True)
    assert scheduler.calls.count("cancel") == 1


def test_a_second_interrupt_leaves_at_once(run: Run, scheduler: StandIn, interrupts: NoSignals) -> None:
    scheduler.refusals = [SchedulerError("no")] * 100
    interrupts.cancel = interrupts.leave = True
    assert not watch(run, Observer(), interrupts).job_is_over
    assert scheduler.calls.count("cancel") == 1


def test_a_closed_terminal_leaves_the_run_alone(run: Run, scheduler: StandIn, interrupts: NoSignals) -> None:
    interrupts.detach = True
    assert watch(run, Observer(), interrupts) == LastLook(Status("waiting"), job_is_over=False)
    assert "cancel" not in scheduler.calls


def test_a_full_disk_does_not_keep_a_job_alive(
    run: Run, scheduler: StandIn, interrupts: NoSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    interrupts.cancel = True
    assert watch(run, Observer(), interrupts).job_is_over
    assert "cancel" in scheduler.calls


@given(st.floats(0.01, 5), st.floats(5, 100), st.lists(st.floats(0, 50), max_size=40))
def test_a_pause_grows_from_the_shortest_to_the_longest(shortest: float, longest: float, steps: list[float]) -> None:
    pause, now, last = Pause((shortest, longest)), 1000.0, None
    for step in steps:
        before = pause.seconds
        assert shortest <= before <= longest
        if pause.due(now):
            assert last is None or now - last >= before
            assert pause.seconds == min(before * BACKOFF, longest)
            last = now
        else:
            assert pause.seconds == before
        now += step
    pause.reset()
    assert pause.seconds == shortest
    assert pause.due(now)
