"""Runs the tests of an image side by side, as many at once as memory and cores allow."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from ctrain_builder.testing.record import RecordedTest
from ctrain_builder.testing.tests import ImageTest
from ctrain_runtime.base.command import POLL_SECONDS

_MEMORY_OF_A_TEST = 4_000_000_000  # bytes; most have two processes that import a framework
Tick = Callable[[], None]


class Ended(Exception):
    """Another test has failed, or the build is being ended."""


def at_once(builds: int = 1) -> int:
    """How many tests each of so many builds may run side by side."""
    return max(1, min(len(os.sched_getaffinity(0)), _memory() // _MEMORY_OF_A_TEST) // builds)


def run(
    checks: Sequence[ImageTest], limit: int, test: Callable[[ImageTest, Tick], RecordedTest], tick: Tick
) -> dict[str, RecordedTest]:
    """Run `test` for each check, at most `limit` side by side, those on GPUs one by one; the results by name.

    The first test that fails ends the others: their results are missing. `test` is called in threads and must call what
    it is given several times a second; `tick` is called in this one. What it raises ends all tests.
    """
    results: dict[str, RecordedTest] = {}
    for group, size in (([c for c in checks if not c.gpu], limit), ([c for c in checks if c.gpu], 1)):
        if not _failed(results.values()):
            results.update(_side_by_side(group, size, test, tick))
    return results


def _side_by_side(
    checks: Sequence[ImageTest], limit: int, test: Callable[[ImageTest, Tick], RecordedTest], tick: Tick
) -> dict[str, RecordedTest]:
    results: dict[str, RecordedTest] = {}
    stop = threading.Event()

    def check_stop() -> None:
        if stop.is_set():
            raise Ended

    with ThreadPoolExecutor(limit) as pool:
        running = {pool.submit(test, check, check_stop): check for check in checks}
        try:
            while running and not _failed(results.values()):
                for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                    results[running.pop(future).name] = future.result()
                tick()
        finally:
            stop.set()  # those that run end at their next tick, before the pool is left
            for future in running:
                future.cancel()
    return results


def _failed(results: Iterable[RecordedTest]) -> bool:
    return any(result.outcome == "failed" for result in results)


def _memory() -> int:
    """Bytes that new processes can use: of the machine, or of the control group that limits this process."""
    available = re.search(r"(?m)^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    free = int(available[1]) * 1024 if available else 0
    group = re.search(r"(?m)^0::(/.*)$", Path("/proc/self/cgroup").read_text())
    directory = Path("/sys/fs/cgroup") / group[1].lstrip("/") if group else Path("/sys/fs/cgroup")
    for level in (directory, *directory.parents):
        limit = level / "memory.max"
        if limit.is_file() and (text := limit.read_text().strip()) != "max":
            free = min(free, int(text))
    return free
