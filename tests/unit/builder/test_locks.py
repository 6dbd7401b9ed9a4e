from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from ctrain_builder.files import locks
from ctrain_runtime.base import file_systems
from ctrain_runtime.errors import StoreError
from samples.programs import give_away

ELSEWHERE = "pid 999999999 (kim on another, since 04:12 UTC)"
flock = fcntl.flock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks, as Lustre without the mount option `flock`."""

    def no(_file: object, _kind: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no)


@pytest.fixture
def local_flock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount whose locks no other machine sees."""
    mount(tmp_path, monkeypatch, "lustre", "rw,localflock")


@pytest.fixture
def nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS, whose servers lock byte ranges: for writing only through descriptors that can write."""
    mount(tmp_path, monkeypatch, "nfs4", "rw,local_lock=none")

    def strict(file: IO[bytes], kind: int) -> None:
        access = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE
        if access == (os.O_RDONLY if kind & fcntl.LOCK_EX else os.O_WRONLY):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", strict)


def mount(place: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str) -> None:
    table = place.with_name(f"{place.name}-mounts")
    table.write_text(f"40 22 0:40 / {place} rw - {kind} server:/x {options}\n")
    monkeypatch.setattr(file_systems, "_TABLE", table)


def one_at_a_time(path: Path, machines: bool) -> bool:
    """Four threads count to a hundred together, in the slowest way."""
    counter = path.with_name("counter")
    counter.write_text("0")

    def count() -> None:
        for _ in range(25):
            with locks.hold(path, machines=machines):
                counter.write_text(str(int(counter.read_text()) + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [file.name for file in path.parent.iterdir()] == ["counter"]
    return counter.read_text() == "100"


@pytest.mark.parametrize("machines", [False, True])
def test_one_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch, machines: bool) -> None:
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.001)
    umask = os.umask(0o022)
    assert one_at_a_time(path, machines)
    assert os.umask(umask) == 0o022  # all threads share it


class NfsClient:
    """Locks as an NFS server takes them for its clients: on the file's bytes, for a process of their own."""

    def __init__(self) -> None:
        program = (
            "import fcntl, sys\n"
            "for line in sys.stdin:\n"
            "    kind, path = line.split()\n"
            "    file = open(path, 'r+b')  # closes the last one, and with it frees its lock\n"
            "    try: fcntl.lockf(file, getattr(fcntl, kind) | fcntl.LOCK_NB); print('held', flush=True)\n"
            "    except BlockingIOError: print('refused', flush=True)\n"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def lock(self, path: Path, kind: str = "LOCK_EX") -> str:
        assert self._process.stdin and self._process.stdout
        print(kind, path, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def client() -> Iterator[NfsClient]:
    client = NfsClient()
    yield client
    client.close()


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(tmp_path, monkeypatch, "xfs", "rw")


@pytest.mark.usefixtures("exported")
def test_a_server_and_its_nfs_clients_exclude_each_other(path: Path, client: NfsClient) -> None:
    path.touch()
    assert client.lock(path) == "held"
    assert locks.try_hold(path, machines=True) is None
    assert locks.try_lock(path, fcntl.LOCK_SH) is None
    other = path.with_name("other")
    other.touch()
    assert client.lock(other) == "held"
    with locks.hold(path, machines=True):
        assert client.lock(path) == "refused"


@pytest.mark.usefixtures("exported")
def test_what_a_server_reads_its_nfs_clients_may_read(path: Path, client: NfsClient) -> None:
    """As the cache's layers: several builds use one, none evicts it."""
    path.touch()
    one, other = locks.try_lock(path, fcntl.LOCK_SH), locks.try_lock(path, fcntl.LOCK_SH)
    assert one and other
    assert client.lock(path) == "refused"
    assert client.lock(path, "LOCK_SH") == "held"
    one.close()
    other.close()
    assert locks.try_lock(path, fcntl.LOCK_EX) is None


@pytest.mark.usefixtures("exported")
def test_a_kernel_without_locks_of_bytes_has_the_other_kind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def old(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", old)
    with locks.hold(path, machines=True):
        assert locks.try_hold(path, machines=True) is None


@pytest.mark.usefixtures("nfs")
def test_an_nfs_client_takes_one_kind_of_lock(path: Path, client: NfsClient) -> None:
    """Its flock is already both."""
    with locks.hold(path, machines=True):
        assert client.lock(path) == "held"


@pytest.mark.parametrize("files", ["no_flock", "local_flock", "nfs"])
def test_one_at_a_time_on_a_cluster(
    request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch, files: str
) -> None:
    request.getfixturevalue(files)
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.001)
    assert one_at_a_time(path, machines=True)


@pytest.mark.parametrize("files", ["", "no_flock", "local_flock"])
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_its_mode_does_not_depend_on_the_umask(
    request: pytest.FixtureRequest, path: Path, umask: int, files: str
) -> None:
    if files:
        request.getfixturevalue(files)
    before = os.umask(umask)
    try:
        with locks.hold(path, mode=0o664, machines=True):
            assert path.stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


@pytest.mark.parametrize("files", ["", "local_flock"])
def test_its_group_is_that_of_the_store_whatever_the_holders(
    request: pytest.FixtureRequest, path: Path, files: str
) -> None:
    if files:
        request.getfixturevalue(files)
    path.touch()
    give_away(path, -1, 4321)  # where that can be
    path.unlink()
    with locks.hold(path, mode=0o664, group=4321, machines=True):
        assert (path.stat().st_gid, path.stat().st_mode & 0o777) == (4321, 0o664)


@pytest.mark.parametrize("files", ["", "no_flock", "local_flock"])
def test_it_names_its_holder(request: pytest.FixtureRequest, path: Path, files: str) -> None:
    if files:
        request.getfixturevalue(files)
    assert locks.holder(path) == ""
    with locks.hold(path, machines=True):
        who = locks.holder_named(path)
        assert re.fullmatch(rf"pid {os.getpid()} \(\S+ on \S+, since \d\d:\d\d UTC\)", who)
        assert locks.holder(path) == who
    assert (locks.holder(path), locks.holder_named(path)) == ("", "somebody")


def test_what_a_dead_process_has_left_is_free(path: Path) -> None:
    path.write_text("pid 999999999 (kim on login01, since 04:12 UTC)")
    assert locks.holder(path) == ""
    with locks.hold(path, lambda owner: pytest.fail(f"waits for {owner}"), machines=True):
        pass


@pytest.mark.parametrize("files", ["no_flock", "local_flock"])
def test_without_locks_what_a_dead_process_has_left_is_named(
    request: pytest.FixtureRequest, path: Path, files: str
) -> None:
    request.getfixturevalue(files)
    with locks.hold(path, machines=True):
        mine = path.read_text()
    path.write_text(mine.replace(f"pid {os.getpid()}", "pid 999999999"))
    assert locks.holder(path) == ""
    with (
        pytest.raises(StoreError, match=r"lock was left by pid 999999999 .*, which has ended\. .* remove the file"),
        locks.hold(path, machines=True),
    ):
        pass
    assert path.exists()
    assert locks.remove_unheld(path, path.with_name("copy"))
    assert not path.exists()


@pytest.mark.parametrize("files", ["no_flock", "local_flock"])
def test_without_locks_another_machine_is_waited_for(
    request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch, files: str
) -> None:
    request.getfixturevalue(files)
    monkeypatch.setattr(locks, "_PATIENCE", 0.0)
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.001)
    path.write_text(ELSEWHERE)
    assert locks.holder(path) == ELSEWHERE
    assert not locks.remove_unheld(path, path)
    told: list[str] = []
    with locks.hold(path, told.append, lambda: path.unlink() if told else None, machines=True):
        assert told == [ELSEWHERE]


def test_one_file_system_mounted_in_two_ways(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one machine locks reach the others, on the other they don't: neither takes the lock from the other."""
    with monkeypatch.context() as elsewhere:
        mount(path.parent, elsewhere, "lustre", "rw,localflock")
        other = locks.try_hold(path, machines=True)
    assert other
    mount(path.parent, monkeypatch, "lustre", "rw,flock")
    assert locks.try_hold(path, machines=True) is None
    other.close()
    mine = locks.try_hold(path, machines=True)
    assert mine
    with monkeypatch.context() as elsewhere:
        mount(path.parent, elsewhere, "lustre", "rw,localflock")
        assert locks.try_hold(path, machines=True) is None
        assert locks.holder(path)
    mine.close()


@pytest.mark.usefixtures("no_flock")
def test_a_file_system_without_locks_and_links_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(_one: object, _other: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreError, match="neither cluster-wide locks nor hard links"):
        locks.try_hold(path, machines=True)
    assert list(path.parent.iterdir()) == []


@pytest.mark.usefixtures("no_flock")
def test_the_answer_to_a_link_gets_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An NFS client asks again then, and is told that the name exists: its own."""
    link = os.link

    def twice(one: str, other: Path) -> None:
        link(one, other)
        link(one, other)

    monkeypatch.setattr(os, "link", twice)
    mine = locks.try_hold(path, machines=True)
    assert mine
    mine.close()


@pytest.mark.usefixtures("no_flock")
def test_a_lock_that_somebody_removed_is_not_taken_from_the_next(path: Path) -> None:
    first = locks.try_hold(path, machines=True)
    path.unlink()
    second = locks.try_hold(path, machines=True)
    assert first and second
    first.close()
    assert locks.holder(path)
    second.close()
    assert not path.exists()


@pytest.mark.usefixtures("nfs")
def test_a_name_that_an_nfs_client_remembers_is_asked_for_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """stat() may answer from a cache for seconds; open() asks the server."""
    path.touch()
    stale = path.stat()

    def another_took_it(file: IO[bytes], kind: int) -> None:
        flock(file, kind)
        path.unlink()
        path.touch()

    monkeypatch.setattr(fcntl, "flock", another_took_it)
    monkeypatch.setattr(Path, "stat", lambda *_, **__: stale)
    assert locks.try_lock(path, fcntl.LOCK_EX) is None


def test_who_waits_too_long_is_told_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.001)
    with (
        locks.hold(path),
        pytest.raises(StoreError, match=rf"held for 0 minutes by pid {os.getpid()} .* is gone, remove the file"),
        locks.hold(path, limit=0.01),
    ):
        pass


def test_what_a_stopped_process_holds_is_not_removed(path: Path) -> None:
    """Also by a process that may not write to the lock: it can't tell, and leaves it."""
    copy = path.with_name("copy")
    copy.touch()
    with locks.hold(path, machines=True):
        assert not locks.remove_unheld(path, copy)
    assert copy.exists()
    assert locks.remove_unheld(path, copy)
    assert list(path.parent.iterdir()) == []
