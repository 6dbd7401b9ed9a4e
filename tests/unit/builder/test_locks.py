from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
from pathlib import Path

import pytest

from ctrain_builder import locks
from ctrain_runtime.errors import StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks, as Lustre without the mount option `flock`."""

    def flock(_file: object, _kind: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)


def one_at_a_time(path: Path) -> bool:
    """Four threads count to a hundred together, in the slowest way."""
    counter = path.with_name("counter")
    counter.write_text("0")

    def count() -> None:
        for _ in range(25):
            with locks.hold(path):
                counter.write_text(str(int(counter.read_text()) + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counter.read_text() == "100" and not path.exists()


def test_one_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "POLL", 0.001)
    umask = os.umask(0o022)
    assert one_at_a_time(path)
    assert os.umask(umask) == 0o022  # all threads share it


@pytest.mark.usefixtures("no_flock")
def test_one_at_a_time_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "POLL", 0.001)
    assert one_at_a_time(path)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_its_mode_does_not_depend_on_the_umask(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with locks.hold(path, mode=0o664):
            assert path.stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


def test_it_names_its_owner(path: Path) -> None:
    with locks.hold(path):
        assert re.fullmatch(rf"pid {os.getpid()} \(\S+ on \S+, since \d\d:\d\d UTC\)", locks.owner(path))
    assert locks.owner(path) == "somebody"


def test_what_a_dead_process_has_left_is_free(path: Path) -> None:
    path.write_text("pid 999999999 (kim on login01, since 04:12 UTC)")
    with locks.hold(path, lambda owner: pytest.fail(f"waits for {owner}")):
        pass


@pytest.mark.usefixtures("no_flock")
def test_without_locks_what_a_dead_process_has_left_is_told(path: Path) -> None:
    with locks.hold(path):
        mine = locks.owner(path)
    path.write_text(mine.replace(f"pid {os.getpid()}", "pid 999999999"))
    with (
        pytest.raises(StoreError, match=r"lock was left by pid 999999999 .*, who is gone. Look at what he did"),
        locks.hold(path),
    ):
        pass
    assert path.exists()


@pytest.mark.usefixtures("no_flock")
def test_without_locks_somebody_on_another_machine_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PATIENCE", 0.0)
    monkeypatch.setattr(locks, "POLL", 0.001)
    path.write_text("pid 999999999 (kim on another, since 04:12 UTC)")
    told: list[str] = []
    with locks.hold(path, told.append, lambda: path.unlink() if told else None):
        assert told == ["pid 999999999 (kim on another, since 04:12 UTC)"]
