"""The chain by which nodes copy the image: what each of them reads, and that no node suffers from a bad one."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.payload import FOLDER, relay
from ctrain_runtime.payload.relay import CHUNK_BYTES, FRAME, REQUEST, Copy, Neighbours, NotCopied
from samples.scripts import wait_until

CONTENT = os.urandom(3 << 20) + b"the end"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
KEY = b"k" * 32
WAIT_SECONDS = 60  # after which a test has failed


@dataclass
class Nodes:
    """Nodes with a disk each, all of them processes of this machine, whose ports stand for their names."""

    folder: Path
    ports: list[int]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def disk(self, number: int) -> Path:
        return self.folder / f"disk{number}"

    def copies(self, number: int) -> list[Path]:
        return sorted(self.disk(number).glob("*"))

    def start(self, number: int, image: str = "", before: bool = True, after: bool = True) -> subprocess.Popen[str]:
        """Start the relay of a node. Without `image` it could not read the shared file."""
        previous = f"127.0.0.1:{self.ports[number - 1]}" if before and number else ""
        port = self.ports[number] if after and number < len(self.ports) - 1 else 0
        what = (image or "/missing", str(len(CONTENT)), f"{DIGEST}.sif")
        where = (str(self.disk(number)), str(self.folder / "key"), "30", previous, str(port))
        argv = [sys.executable, "-I", str(FOLDER / "relay.py"), *what, *where]
        self.started.append(subprocess.Popen(argv, stderr=subprocess.PIPE, text=True))
        return self.started[-1]

    @property
    def image(self) -> str:
        return str(self.folder / "image.sif")


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=WAIT_SECONDS)
    return process.returncode, said


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "image.sif").write_bytes(CONTENT)
    (tmp_path / "key").write_bytes(KEY)
    nodes = Nodes(tmp_path, free_ports(4))
    yield nodes
    for process in nodes.started:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def neighbour(port: int) -> Iterator[socket.socket]:
    """A test that is the node before: the connection of the node after it, once that has asked."""
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(WAIT_SECONDS)
        sock, _ = server.accept()
        with sock:
            assert relay.grant(sock, KEY) == 0
            yield sock


def send(sock: socket.socket, data: bytes, available: int = len(CONTENT)) -> None:
    sock.sendall(FRAME.pack(len(data), available) + data)


def test_only_the_first_node_reads_the_shared_file(nodes: Nodes) -> None:
    others = [nodes.start(number) for number in (3, 1, 2)]  # in any order
    first = nodes.start(0, nodes.image)
    assert [ended(process) for process in (first, *others)] == [(0, "")] * 4
    for number in range(4):
        [copy] = nodes.copies(number)
        assert copy.name == f"{DIGEST}.sif" and copy.read_bytes() == CONTENT
        assert copy.stat().st_mode & 0o077 == 0 and nodes.disk(number).stat().st_mode & 0o777 == 0o700


def test_a_node_that_has_the_image_reads_nothing_and_serves_the_next(nodes: Nodes) -> None:
    assert ended(nodes.start(1, nodes.image, before=False, after=False)) == (0, "")
    [copy] = nodes.copies(1)
    inode = copy.stat().st_ino
    chain = [nodes.start(number, nodes.image if number == 0 else "") for number in range(4)]
    assert [ended(process) for process in chain] == [(0, "")] * 4
    assert copy.stat().st_ino == inode and copy.read_bytes() == CONTENT


def test_a_node_without_a_directory_is_named_and_the_next_reads_the_shared_file(nodes: Nodes) -> None:
    nodes.disk(1).touch()
    chain = [nodes.start(number, nodes.image if number in (0, 2) else "/missing") for number in range(4)]
    (_, _), (code, why), (next_code, next_why), last = map(ended, chain)
    assert (code, next_code, last) == (1, 0, (0, ""))
    assert f"not copied to {os.uname().nodename}: cannot use {nodes.disk(1)}: Not a directory." in why
    assert "reading the rest from the shared file system" in next_why
    assert [len(nodes.copies(number)) for number in (0, 2, 3)] == [1, 1, 1]


def test_a_directory_that_others_can_write_to_is_not_used(nodes: Nodes) -> None:
    nodes.disk(0).mkdir()
    nodes.disk(0).chmod(0o777)
    code, why = ended(nodes.start(0, nodes.image, after=False))
    assert code == 1 and f"cannot use {nodes.disk(0)}: others can write to it. Ranks there read the shared file" in why
    assert not nodes.copies(0)


def test_the_rest_is_read_when_the_node_before_is_lost(nodes: Nodes) -> None:
    node, last = nodes.start(1, nodes.image), nodes.start(2, after=False)
    with neighbour(nodes.ports[0]) as sock:
        send(sock, CONTENT[:1000])
        send(sock, b"")
        sock.sendall(FRAME.pack(5000, len(CONTENT)) + CONTENT[1000:1500])  # it ends in the middle of a frame
    code, said = ended(node)
    assert code == 0 and "lost the connection to 127.0.0.1 (connection closed)" in said
    assert ended(last) == (0, "")  # it never noticed
    assert nodes.copies(1)[0].read_bytes() == nodes.copies(2)[0].read_bytes() == CONTENT


def test_wrong_contents_leave_no_copy(nodes: Nodes) -> None:
    node = nodes.start(1, nodes.image, after=False)
    with neighbour(nodes.ports[0]) as sock:
        for start in range(0, len(CONTENT), CHUNK_BYTES):  # as a node sends it
            send(sock, bytes(min(CHUNK_BYTES, len(CONTENT) - start)))
        code, why = ended(node)
    assert code == 1 and "digest mismatch" in why
    assert not nodes.copies(1)


def test_an_image_shorter_than_planned_leaves_no_copy(nodes: Nodes) -> None:
    Path(nodes.image).write_bytes(CONTENT[:-1])
    code, why = ended(nodes.start(0, nodes.image, after=False))
    assert (
        code == 1
        and f"{nodes.image} not copied to {os.uname().nodename}: it has {len(CONTENT) - 1} bytes, not {len(CONTENT)}"
        in why
    )
    assert not nodes.copies(0)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_copy_that_was_ended_is_never_used_and_made_again(nodes: Nodes, end: int) -> None:
    node = nodes.start(1, after=False)
    with neighbour(nodes.ports[0]) as sock:
        send(sock, CONTENT[:1000])
        wait_until(lambda: nodes.copies(1) and nodes.copies(1)[0].stat().st_size == 1000)
        node.send_signal(end)
        assert node.wait(WAIT_SECONDS) == (143 if end == signal.SIGTERM else -end)
    assert [path.suffix for path in nodes.copies(1)] == ([] if end == signal.SIGTERM else [".part"])
    assert ended(nodes.start(1, nodes.image, before=False, after=False)) == (0, "")
    assert [path.name for path in nodes.copies(1)] == [f"{DIGEST}.sif"]


def test_nothing_is_sent_without_the_key(nodes: Nodes) -> None:
    node = nodes.start(0, nodes.image)
    wait_until(lambda: nodes.copies(0) and nodes.copies(0)[0].suffix == ".sif")
    where = ("127.0.0.1", nodes.ports[0])
    with (
        socket.create_connection(where, WAIT_SECONDS) as sock,
        pytest.raises(OSError, match="it lacks the key of the run"),
    ):
        relay.ask(sock, b"x" * 32, 0)
    with socket.create_connection(where, WAIT_SECONDS) as sock:
        sock.sendall(b"n" * relay.NONCE_BYTES)
        seen = sock.recv(2 * relay.NONCE_BYTES, socket.MSG_WAITALL)
        sock.sendall(REQUEST.pack(seen[relay.NONCE_BYTES :], 0))  # what the other end has proven is no proof
        assert sock.recv(1) == b""
    assert ended(nodes.start(1, after=False)) == (0, "")
    assert ended(node) == (0, "")


def test_nothing_is_taken_from_who_lacks_the_key_nor_shown_to_him(nodes: Nodes) -> None:
    """A stranger who listens at the port got the key, and so the data of the node before it."""
    seen = b""
    with socket.create_server(("127.0.0.1", nodes.ports[0])) as server:
        server.settimeout(WAIT_SECONDS)
        node = nodes.start(1, nodes.image, after=False)
        sock, _ = server.accept()
        with sock:
            seen += sock.recv(relay.NONCE_BYTES, socket.MSG_WAITALL)
            sock.sendall(b"x" * 2 * relay.NONCE_BYTES)
            seen += sock.recv(1 << 10)
    assert len(seen) == relay.NONCE_BYTES and KEY not in seen
    code, said = ended(node)
    assert code == 0 and "(it lacks the key of the run); reading the rest" in said
    assert [copy.read_bytes() for copy in nodes.copies(1)] == [CONTENT]


@pytest.fixture
def part(tmp_path: Path) -> Iterator[Any]:
    with (tmp_path / "part").open("w+b", 0) as file:
        yield file


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_node_that_stays_far_behind_leaves_the_chain(
    part: Any, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "JUDGED_SECONDS", 0.0)
    send(pair[1], b"little", available=1 << 50)
    with pytest.raises(NotCopied, match=r"its network or its disk is slow \("):
        Copy(part, 1 << 50, 0).receive(pair[0])


def test_a_node_is_not_to_blame_for_one_before_it_that_has_no_more(
    part: Any, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "JUDGED_SECONDS", 0.0)
    send(pair[1], b"little", available=6)
    pair[1].close()
    with pytest.raises(OSError, match="connection closed"):
        Copy(part, 1 << 50, 0).receive(pair[0])


def test_a_node_before_that_is_silent_is_lost(part: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].settimeout(0.05)
    with pytest.raises(OSError, match="timed out"):
        Copy(part, 10, 0).receive(pair[0])


def test_a_copy_takes_only_so_long(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Copy(part, 10, 0)
    late = time.monotonic() + 100
    monkeypatch.setattr(relay.time, "monotonic", lambda: late)
    with pytest.raises(NotCopied, match="it took too long"):
        copy.append(memoryview(b"x"))


def test_progress_is_reported_now_and_then(
    part: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(relay.time, "monotonic", lambda: now)
    size, have = 150_000_000_000, 12_300_000_000
    copy, silent = Copy(part, size, have, reports=True), Copy(part, size, have)
    for _ in range(8):
        now += 3
        copy.append(memoryview(b"x"))
        silent.append(memoryview(b"x"))
    assert capsys.readouterr().err == "ctrain: copied 12.3 of 150.0 GB\n" * 2


def test_a_disk_that_becomes_full_is_named() -> None:
    with Path("/dev/full").open("r+b", 0) as disk, pytest.raises(NotCopied, match="No space left on device"):
        Copy(disk, 10, 0).append(memoryview(b"x"))


def test_a_node_before_that_never_starts_is_not_waited_for(
    nodes: Nodes, part: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Copy(part, 10, 0)
    Neighbours(str(nodes.folder / "key"), 0.0, f"127.0.0.1:{nodes.ports[0]}", 0).fetch(copy)
    assert copy.have == 0
    assert "lost the connection to 127.0.0.1 (Connection refused)" in capsys.readouterr().err


def test_the_program_is_for_old_pythons_too() -> None:
    """The system's Python of many clusters is 3.6."""
    ast.parse((FOLDER / "relay.py").read_text(encoding="utf-8"), feature_version=(3, 6))
