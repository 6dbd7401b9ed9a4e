"""Copies a file to this node's own disk. The first node of a run reads the shared file system; each of the others has
the file from the node before it, while that is still receiving: a chain.

Usage: relay.py FILE SIZE NAME DIRECTORY KEY-FILE SECONDS BEFORE PORT, once on each node. NAME, of the copy, is the
digest and a suffix; BEFORE is HOST:PORT of the node before, PORT where the node after connects ("" and 0: there is
none), SECONDS the time between the starts of two nodes. A node that is left without a copy is named; its exit code is
1. The last node reports its progress.

No node waits for a bad one: who loses the node before it reads the rest of the shared file, and a slow node leaves the
chain. Other users are not trusted: neither what they put into DIRECTORY, nor what connects or listens without the run's
key, which both ends prove to have and neither sends.

ctrain copies this file to the run directory. The node's own Python runs it, from 3.6 on: hence no later annotations.
"""

import contextlib
import fcntl
import hashlib
import hmac
import os
import signal
import socket
import stat
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 18
NONCE_BYTES = 32
REQUEST = struct.Struct("!32sQ")  # the proof of the node after, and bytes that it has
FRAME = struct.Struct("!IQ")  # bytes that follow, and bytes that the sender has
STRANGER_SECONDS = 2.0  # in which a connection must have sent its request
SILENCE_SECONDS = 10.0  # after which a connection is lost: a living node sends something every second
SLOWEST = 20e6  # bytes per second: a sixth of what 1 Gb Ethernet carries
JUDGED_SECONDS = 10.0  # in which a node has shown that it is slower
REPORT_SECONDS = 10.0  # between two lines about the progress


class NotCopied(Exception):
    """Why this node has no copy."""


class Copy:
    """The file on this node, as far as it is there."""

    def __init__(self, file: Any, size: int, have: int, *, reports: bool = False) -> None:
        self.size, self.have, self._file, self._failed = size, have, file, False
        self._report_at = time.monotonic() + REPORT_SECONDS if reports else float("inf")
        self._digest, self._changed = hashlib.sha256(), threading.Condition()
        self._deadline = time.monotonic() + 60 + size / SLOWEST

    def append(self, data: memoryview) -> None:
        """Raises NotCopied."""
        self._digest.update(data)
        rest = data
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise NotCopied(f"cannot write the copy: {error.strerror}") from error
        now = time.monotonic()
        if now > self._deadline:
            raise NotCopied("it took too long")
        if now > self._report_at:
            self._report_at = now + REPORT_SECONDS
            complain(f"copied {self.have / 1e9:.1f} of {self.size / 1e9:.1f} GB")
        with self._changed:
            self.have += len(data)
            self._changed.notify_all()

    def fail(self) -> None:
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def read(self, offset: int) -> bytes:
        """Up to a chunk of what is there from `offset` on; waits a second for it. Raises OSError for a failed copy."""
        with self._changed:
            self._changed.wait_for(lambda: self.have > offset or self._failed, timeout=1)
        if self._failed:
            raise OSError("the copy has failed")
        return os.pread(self._file.fileno(), min(self.have - offset, CHUNK_BYTES), offset)

    def receive(self, before: socket.socket) -> None:
        """Complete it from the node before. Raises OSError if that is lost, NotCopied if this node is slow: far behind
        what the other one has."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        since, mark = time.monotonic(), self.have
        while self.have < self.size:
            count, available = FRAME.unpack(fill(before, buffer[: FRAME.size]))
            self.append(fill(before, buffer[:count]))
            seconds = time.monotonic() - since
            if seconds > JUDGED_SECONDS:
                if self.have - mark < SLOWEST * seconds < available - self.have:
                    raise NotCopied(f"its network or its disk is slow ({(self.have - mark) / seconds / 1e6:.1f} MB/s)")
                since, mark = time.monotonic(), self.have

    def read_rest(self, source: str) -> None:
        """Complete it from the shared file system. Raises NotCopied."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            with Path(source).open("rb", 0) as file:
                file.seek(self.have)
                while self.have < self.size:
                    length = file.readinto(buffer[: self.size - self.have])
                    if not length:
                        raise NotCopied(f"it has {self.have} bytes, not {self.size}")
                    self.append(buffer[:length])
        except OSError as error:
            raise NotCopied(f"cannot read it: {error.strerror}") from error

    def check(self, digest: str) -> None:
        """Raises NotCopied for other contents."""
        if self._digest.hexdigest() != digest:
            raise NotCopied(f"digest mismatch: the copy has sha256:{self._digest.hexdigest()}")


class Neighbours:
    """The nodes before and after this one. Both may start later."""

    def __init__(self, key_file: str, seconds: float, before: str, port: int) -> None:
        self._before, self._deadline = before, time.monotonic() + seconds
        self._key = Path(key_file).read_bytes() if before or port else b""
        self._listener = socket.socket() if port else None
        if self._listener:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):  # the port is in use: the node after reads the shared file
                self._listener.bind(("", port))
                self._listener.listen(16)

    def fetch(self, copy: Copy) -> None:
        """Append what the node before has, as far as that sends it; nothing, if there is none. Raises NotCopied."""
        host, _, port = self._before.rpartition(":")
        try:
            if host:
                with self._connect(host, int(port)) as sock:
                    ask(sock, self._key, copy.have)
                    copy.receive(sock)
        except OSError as error:
            reason = error.strerror or error
            lost = f"{os.uname().nodename} lost the connection to {host} ({reason})"
            complain(f"{lost}; reading the rest from the shared file system")

    def serve(self, copy: Copy) -> None:
        """From now on, send the copy to the node after; this process does not end before."""
        if self._listener:
            threading.Thread(target=self._send, args=(self._listener, copy)).start()

    def _connect(self, host: str, port: int) -> socket.socket:
        while True:
            try:
                return socket.create_connection((host, port), SILENCE_SECONDS)
            except ConnectionRefusedError:
                if time.monotonic() > self._deadline:
                    raise
                time.sleep(0.05)

    def _send(self, listener: socket.socket, copy: Copy) -> None:
        """While nothing comes in, an empty frame goes out every second."""
        with contextlib.suppress(OSError), listener:  # the node after is gone, or never started
            sock, sent = self._accept(listener)
            with sock:
                while sent < copy.size:
                    data = copy.read(sent)
                    sock.sendall(FRAME.pack(len(data), copy.have))
                    sock.sendall(data)
                    sent += len(data)

    def _accept(self, listener: socket.socket) -> Any:
        """A connection with the run's key, and the bytes that the node after has; others are closed. Raises OSError."""
        while True:
            listener.settimeout(max(0.01, self._deadline - time.monotonic()))
            sock, _ = listener.accept()
            sock.settimeout(STRANGER_SECONDS)
            with contextlib.suppress(OSError):
                have = grant(sock, self._key)
                sock.settimeout(SILENCE_SECONDS)
                return sock, have
            sock.close()


def ask(sock: socket.socket, key: bytes, have: int) -> None:
    """Ask the node before for what follows `have` bytes. Raises OSError if it cannot prove that it has the key."""
    own = os.urandom(NONCE_BYTES)
    sock.sendall(own)
    answer = bytes(fill(sock, memoryview(bytearray(2 * NONCE_BYTES))))
    other, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, prove(key, b"before", own + other)):
        raise OSError("it lacks the key of the run")
    sock.sendall(REQUEST.pack(prove(key, b"after", own + other), have))


def grant(sock: socket.socket, key: bytes) -> int:
    """The bytes that the node after has. Raises OSError if it cannot prove that it has the key."""
    other, own = bytes(fill(sock, memoryview(bytearray(NONCE_BYTES)))), os.urandom(NONCE_BYTES)
    sock.sendall(own + prove(key, b"before", other + own))
    proof, have = REQUEST.unpack(fill(sock, memoryview(bytearray(REQUEST.size))))
    if not hmac.compare_digest(proof, prove(key, b"after", other + own)):
        raise OSError("it lacks the key of the run")
    return int(have)


def prove(key: bytes, role: bytes, nonces: bytes) -> bytes:
    """What only a node with the key can say of these nonces; each role says another (RFC 2104)."""
    return hmac.new(key, role + nonces, "sha256").digest()


def fill(sock: socket.socket, buffer: memoryview) -> memoryview:
    """The whole buffer, received. Raises OSError."""
    rest = buffer
    while rest:
        length = sock.recv_into(rest)
        if not length:
            raise OSError("connection closed")
        rest = rest[length:]
    return buffer


def enter(path: str) -> None:
    """Make the user's own directory of copies the current one. Raises OSError, or NotCopied if it is not private."""
    with contextlib.suppress(FileExistsError):
        Path(path).mkdir(0o700)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    status = os.fstat(directory)
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotCopied(f"cannot use {path}: others can write to it")
    os.chdir(directory)


def is_complete(copy: Path, size: int) -> bool:
    """Whether there is a copy, which then counts as used now. A crash of the node may have left a shorter one."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(copy)
        return copy.stat().st_size == size
    return False


def create(part: Path, size: int) -> Any:
    """The empty part of a copy, locked; None if another process writes to it, or has just completed it."""
    part.touch(0o600)
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        file = part.open("r+b", 0)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(part.stat(), os.fstat(file.fileno())):
            file.truncate(0)
            disk = os.statvfs(".")
            if disk.f_bavail * disk.f_frsize < size:
                part.unlink()
                raise NotCopied(f"the disk has less than the {size / 1e9:.1f} GB that the copy needs")
            return file
    return None


def obtain(source: str, size: int, name: str, directory: str, neighbours: Neighbours, *, reports: bool) -> None:
    """Have a copy in the directory. Raises NotCopied."""
    complete, part = Path(name), Path(name).with_suffix(".part")
    copy, file = Copy(None, size, size), None
    copy.fail()  # until there is one, the node after need not wait for it
    try:
        enter(directory)
        if is_complete(complete, size):
            copy = Copy(complete.open("rb", 0), size, size)
        else:
            file = create(part, size)
            copy = Copy(file, size, 0, reports=reports) if file else copy
    except OSError as error:
        raise NotCopied(f"cannot use {directory}: {error.strerror}") from error
    finally:
        neighbours.serve(copy)
        if not file:
            neighbours.fetch(copy)  # nothing
    if file:
        try:
            neighbours.fetch(copy)
            if copy.have < size:
                copy.read_rest(source)
            copy.check(complete.stem)
            part.rename(complete)
        except BaseException:
            copy.fail()
            with contextlib.suppress(FileNotFoundError):
                part.unlink()
            raise
        fcntl.flock(file, fcntl.LOCK_SH)  # others may use it, while this process may still send it
    elif not is_complete(complete, size):  # another run makes it
        with contextlib.suppress(FileNotFoundError), part.open("rb") as others:
            fcntl.flock(others, fcntl.LOCK_SH)
        if not is_complete(complete, size):
            raise NotCopied("another run could not copy it")


def main() -> int:
    source, size, name, directory, key_file, seconds, before, port = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        neighbours = Neighbours(key_file, float(seconds), before, int(port))
        obtain(source, int(size), name, directory, neighbours, reports=port == "0")
    except (NotCopied, OSError) as error:
        complain(f"{source} not copied to {os.uname().nodename}: {error}. Ranks there read the shared file")
        return 1
    return 0


def complain(message: str) -> None:
    print(f"ctrain: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
