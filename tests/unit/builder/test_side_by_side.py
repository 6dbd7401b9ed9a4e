from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ctrain_builder.testing import side_by_side
from ctrain_builder.testing.side_by_side import Tick
from ctrain_builder.testing.tests import ImageTest
from ctrain_runtime.store.manifest import TestResult as Result

CHECKS = [ImageTest(name, ("true",)) for name in "abcd"]


def passed(check: ImageTest, _tick: Tick) -> Result:
    return Result(check.name, True, "0.1")


def no_tick() -> None: ...


def test_tests_run_side_by_side() -> None:
    meeting = threading.Barrier(2, timeout=60)

    def meet(check: ImageTest, tick: Tick) -> Result:
        meeting.wait()  # passes only if two run at the same time
        return passed(check, tick)

    results = side_by_side.run(CHECKS, 2, meet, no_tick)
    assert {name: result.outcome for name, result in results.items()} == dict.fromkeys("abcd", "passed")


def test_tests_on_gpus_run_alone_and_last() -> None:
    order: list[str] = []
    running: set[str] = set()

    def alone(check: ImageTest, tick: Tick) -> Result:
        running.add(check.name)
        if check.gpu:
            assert running == {check.name}
        order.append(check.name)
        running.remove(check.name)
        return passed(check, tick)

    gpus = [ImageTest(name, ("true",), gpu=True) for name in ("GPU", "NCCL")]
    side_by_side.run([*gpus, *CHECKS], 4, alone, no_tick)
    assert order[-2:] == ["GPU", "NCCL"]


def test_the_first_failure_ends_the_others() -> None:
    ended: list[str] = []
    started = threading.Barrier(2, timeout=60)

    def test(check: ImageTest, tick: Tick) -> Result:
        if check.name in ("a", "b"):  # a worker may take another one before the failure is seen
            started.wait()
        if check.name == "a":
            return Result("a", False, "0.1")
        try:
            while True:
                tick()
                time.sleep(0.01)
        except side_by_side.Ended:
            ended.append(check.name)
            raise

    gpu = ImageTest("GPU", ("true",), gpu=True)
    assert list(side_by_side.run([*CHECKS, gpu], 2, test, no_tick)) == ["a"]
    assert "b" in ended and "GPU" not in ended


def test_an_interrupt_ends_all() -> None:
    ended = threading.Event()

    def test(_check: ImageTest, tick: Tick) -> Result:
        try:
            while True:
                tick()
                time.sleep(0.01)
        finally:
            ended.set()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side.run(CHECKS[:1], 1, test, interrupt)
    assert ended.is_set()


def test_an_error_in_a_test_is_not_lost() -> None:
    def broken(_check: ImageTest, _tick: Tick) -> Result:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        side_by_side.run(CHECKS, 2, broken, no_tick)


@pytest.mark.parametrize(
    ("cores", "memory", "builds", "tests"),
    [(2, 24, 1, 2), (64, 24, 1, 6), (64, 512, 4, 16), (2, 24, 4, 1), (8, 1, 1, 1)],
)
def test_as_many_as_cores_and_memory_allow(
    cores: int, memory: int, builds: int, tests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side.os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(side_by_side, "_memory", lambda: memory * 10**9)
    assert side_by_side.at_once(builds) == tests


def test_the_memory_of_this_machine_is_known() -> None:
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    assert 0 < side_by_side._memory() <= total * 1024
