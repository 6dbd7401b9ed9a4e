"""What a scan sees of the processes of a node: a tree of directories stands for /proc."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

import pytest

from ctrain_runtime.launchers.scan import Nested, Processes, Ranks

RUN = "/scratch/kim/one"
MEET = ("127.0.0.1", 61001)
OTHER = ("127.0.0.1", 29500)


class Proc:
    """A node's processes, written as proc(5) says."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "proc"
        (self.path / "net").mkdir(parents=True)
        self._rows: dict[str, list[str]] = {"tcp": [], "tcp6": []}
        self._next = 100
        self._inode = 5000
        self.connect(None, None, ("10.0.0.1", 22), ("10.9.9.9", 4000))  # somebody's ssh

    def start(self, parent: int, *words: str, **variables: object) -> int:
        """Start a program, by its own execve: with variables of its own."""
        self._next += 1
        text = "".join(f"{name}={value}\0" for name, value in variables.items())
        return self._write(self._next, parent, "".join(f"{word}\0" for word in words), text)

    def fork(self, parent: int) -> int:
        """A forked process: it has the words and variables of its parent."""
        self._next += 1
        words, variables = ((self.path / str(parent) / name).read_text() for name in ("cmdline", "environ"))
        return self._write(self._next, parent, words, variables)

    def task(self) -> int:
        """What the scheduler has started: task.sh, and its subshell that waits for the engine."""
        return self.fork(self.start(1, "/bin/bash", "-p", f"{RUN}/task.sh", RUN, HOME="/home/kim"))

    def rank(self, number: int, size: int = 2, node: int = 0, **more: object) -> int:
        """A rank of launcher env, below a task of its own; its program is in a container."""
        who = {"RANK": number, "WORLD_SIZE": size, "LOCAL_RANK": number, "NODE_RANK": node}
        meet = {"MASTER_ADDR": MEET[0], "MASTER_PORT": MEET[1]}
        variables = {**who, **meet, **more}
        return self.start(self.start(self.task(), "apptainer", "exec", **variables), "bash", "run.sh", **variables)

    def world(self, rank: int, size: int = 2, meet: tuple[str, int] = OTHER, command: str = "x.py") -> list[int]:
        """What torchrun starts in a rank: so many ranks of its own, that meet each other."""
        variables = self.variables(rank)
        agent = self.start(rank, "python", "/usr/bin/torchrun", command, **variables)
        own = {**variables, "WORLD_SIZE": size, "MASTER_ADDR": meet[0], "MASTER_PORT": meet[1]}
        members = [
            self.start(agent, "python", "-u", command, **{**own, "RANK": local, "LOCAL_RANK": local})
            for local in range(size)
        ]
        for number, member in enumerate(members):
            self.connect(member, members[0], ("127.0.0.1", 40000 + member + number), meet)
        return members

    def variables(self, pid: int) -> dict[str, str]:
        words = (self.path / str(pid) / "environ").read_text().split("\0")[:-1]
        return dict(word.split("=", 1) for word in words)

    def connect(
        self, client: Optional[int], server: Optional[int], local: tuple[str, int], remote: tuple[str, int]
    ) -> None:
        """A connection of a process, None: of another machine's or user's."""
        for pid, ends in ((client, (local, remote)), (server, (remote, local))):
            self._inode += 1
            kind = "tcp6" if ":" in local[0] else "tcp"
            words = " ".join(f"{_hexadecimal(host)}:{port:04X}" for host, port in ends)
            self._rows[kind].append(f"   0: {words} 01 00000000:00000000 00:00000000 00000000  1000 0 {self._inode} 1")
            if pid is not None:
                self.path.joinpath(str(pid), "fd", str(self._inode)).symlink_to(f"socket:[{self._inode}]")
        for name, rows in self._rows.items():
            (self.path / "net" / name).write_text("\n".join(["  sl  local_address rem_address   st", *rows]) + "\n")

    def hide(self, pid: int) -> None:
        """A process that another user owns, or that may not be looked into: as below a setuid engine."""
        for name in ("environ", "cmdline"):
            (self.path / str(pid) / name).unlink()

    def _write(self, pid: int, parent: int, words: str, variables: str) -> int:
        folder = self.path / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fd" / "0").symlink_to("/dev/null")
        (folder / "stat").write_text(f"{pid} (a) name) S {parent} 1 1 0 -1 4194560")
        (folder / "cmdline").write_text(words)
        (folder / "environ").write_text(variables)
        return pid


def _hexadecimal(host: str) -> str:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    return "".join(f"{word:08X}" for word in struct.unpack(f"<{len(packed) // 4}I", packed))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run/nodes").mkdir(parents=True)
    return tmp_path / "run"


def joined(proc: Proc, launcher: str = "env", size: int = 2, hosts: Mapping[str, str] = {}) -> list[int]:
    """The ranks that have joined."""
    ranks = Ranks(RUN, launcher, size, list(hosts))
    processes = Processes(proc.path)
    return sorted(number for _, number in ranks.joined(processes, ranks.find(processes)))


def nested(proc: Proc, launcher: str = "env", size: int = 2) -> dict[int, Nested]:
    """The ranks that have ranks of their own."""
    ranks = Ranks(RUN, launcher, size, [])
    processes = Processes(proc.path)
    found = {number: ranks.nested(processes, pids) for (_, number), pids in ranks.find(processes).items()}
    return {number: value for number, value in found.items() if value}


def test_ranks_at_the_rendezvous_have_joined(proc: Proc) -> None:
    first, second = proc.rank(0), proc.rank(1)
    assert joined(proc) == []
    proc.connect(first, first, ("127.0.0.1", 40000), MEET)
    assert joined(proc) == [0]
    proc.connect(proc.fork(second), first, ("127.0.0.1", 40001), MEET)
    assert joined(proc) == [0, 1]


def test_a_rank_with_ranks_of_its_own_is_nested_and_has_not_joined(proc: Proc) -> None:
    for number in range(2):
        proc.world(proc.rank(number))
    assert joined(proc) == []
    assert set(nested(proc)) == {0, 1}
    assert nested(proc)[0] == Nested((2,), 2, ("python -u x.py", "python -u x.py"), "torchrun")
