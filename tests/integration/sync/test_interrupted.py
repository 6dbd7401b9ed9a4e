"""`ctrain store sync`, stopped or killed: it resumes, and nothing is half there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctrain_builder.store import usage
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_runtime.store.store import Store, open_store
from samples.registry import Answer, Front, Request
from samples.stores import Image, disk
from samples.syncing import MIB, R1, R2, Sync, moved, place, same

# The handler is set because a process started in the background of a script has SIGINT switched off.
PROGRAM = """
import os, signal, sys, time
from ctrain_builder.cli.main import main
from ctrain_builder.registry import artifacts
from ctrain_builder.store import copy
artifacts._CHUNK = copy._CHUNK = 1 << 20
read = os.pread
os.pread = lambda *args: (time.sleep({pause}), read(*args))[1]
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@contextlib.contextmanager
def started(*argv: object, pause: float = 0) -> Iterator[subprocess.Popen[bytes]]:
    """`ctrain store sync ARGV` in a process of its own, which reads slowly."""
    command = [sys.executable, "-c", PROGRAM.format(pause=pause), "store", "sync", *map(str, argv)]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(done: Callable[[], object]) -> None:
    for _ in range(2000):
        if done():
            return
        time.sleep(0.01)
    raise AssertionError("it does not happen")


def part(root: Path) -> int:
    """Bytes of a copy that is being made."""
    return sum(path.stat().st_size for path in root.glob(".*.part"))


def test_killed_between_folders(store: Store, tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    with started(store.root, other, "small:prod", pause=0.1) as process:
        wait_for(lambda: other.exists() and part(other) >= 3 * MIB)
        process.send_signal(signal.SIGKILL)
    assert open_store(other).images() == ()
    has, size, pread, taken = part(other), store.images()[0].manifest.size, os.pread, []

    def counting(file: int, count: int, at: int) -> bytes:
        if Path(f"/proc/self/fd/{file}").resolve().parent == store.root:
            taken.append(count)
        return pread(file, count, at)

    monkeypatch.setattr(os, "pread", counting)
    sync(store.root, other, "small:prod")
    assert 0 < sum(taken) <= size - has + 4096
    same(store, other, R1)


def test_killed_where_layers_are_shared(pair: list[Image], tmp_path: Path, sync: Sync) -> None:
    """What is taken by reference is there first, so the copy has a hole before it."""
    init_store(tmp_path / "store")
    publish(pair[0].path, pair[0].manifest, tmp_path / "store")
    with disk(tmp_path, "xfs", 400) as mounted:
        other = mounted / "other"
        init_store(other)
        sync(tmp_path / "store", other)
        publish(pair[1].path, pair[1].manifest, tmp_path / "store")
        with started(tmp_path / "store", other, pause=0.5) as process:
            wait_for(lambda: part(other) >= MIB)
            process.send_signal(signal.SIGKILL)
        sync(tmp_path / "store", other)
        same(open_store(tmp_path / "store"), other, R1, R2)
        told, together = usage.usage([image.path for image in open_store(other).images()])
        assert together < sum(one.size for one in told) - 7_000_000


def test_killed_on_the_way_from_a_registry(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    other, size = tmp_path / "other", store.images()[0].manifest.size
    sync(store.root, place(before), "small:prod")
    before.fault = slow
    with started(place(before), other, "small") as process:
        wait_for(lambda: other.exists() and part(other) >= 3 * MIB)
        process.send_signal(signal.SIGKILL)
    assert open_store(other).images() == ()
    before.fault = lambda _, __: None
    before.requests.clear()
    sync(place(before), other)
    same(store, other, R1)
    asked = [one.headers["range"] for one in before.requests if "range" in one.headers]
    assert len(asked) == 1
    assert 3 * MIB - 4096 <= int(asked[0].removeprefix("bytes=").removesuffix("-")) < size


def slow(_: Request, answer: Answer) -> None:
    if len(answer.body) > MIB:
        answer.chunk, answer.pause = 200_000, 0.02


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_on_the_way_to_a_registry(
    how: signal.Signals, store: Store, before: Front, tmp_path: Path, sync: Sync
) -> None:
    """The part that is under way is sent to its end."""
    arrived = late(before)
    with started(store.root, place(before), "small:prod") as process:
        wait_for(lambda: len(arrived) == 3)
        process.send_signal(how)
        assert process.wait() == 128 + how
    goes_on(store, before, tmp_path, sync)


def test_killed_on_the_way_to_a_registry(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    noted: set[str] = set()
    with started(store.root, place(before), "small:prod", pause=0.5) as process:
        wait_for(lambda: noted.update(map(Path.read_text, notes(tmp_path))) or len(noted) == 4)
        process.send_signal(signal.SIGKILL)  # while it reads
    goes_on(store, before, tmp_path, sync)


def test_killed_while_a_part_is_sent(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    """docker-registry forgets such an upload: all of it is sent again."""
    arrived = late(before)
    with started(store.root, place(before), "small:prod") as process:
        wait_for(lambda: len(arrived) == 3)
        process.send_signal(signal.SIGKILL)
    before.fault = lambda _, __: None
    sync(store.root, place(before))
    sync(place(before), tmp_path / "other")
    same(store, tmp_path / "other", R1, R2)
    assert notes(tmp_path) == []


def late(before: Front) -> list[Request]:
    """Parts of uploads that have come, and whose answers take half a second."""
    arrived: list[Request] = []

    def wait(request: Request, _: Answer) -> None:
        if request.method == "PATCH":
            arrived.append(request)
            time.sleep(0.5)

    before.fault = wait
    return arrived


def goes_on(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    """After three parts."""
    assert moved(before) == 3 * MIB
    before.fault = lambda _, __: None
    before.requests.clear()
    sync(store.root, place(before), "small:prod")
    assert moved(before) == store.images()[0].manifest.size - 3 * MIB
    sync(place(before), tmp_path / "other")
    same(store, tmp_path / "other", R1)
    assert notes(tmp_path) == []


def notes(folder: Path) -> list[Path]:
    """Of uploads that have been begun."""
    return [path for path in (folder / "cache").glob("upload-*") if not path.suffix]
