"""The server of launcher gloo with a stand-in for Horovod's classes. The real ones: tests/integration."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime import payload
from samples.scripts import wait_until

HOSTS = "def parse_hosts(text):\n    return text\ndef get_host_assignments(hosts, ranks):\n    return hosts, ranks\n"
SERVER = """\
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class RendezvousHandler(BaseHTTPRequestHandler):
    pass
class RendezvousHTTPServer(ThreadingHTTPServer):
    def __init__(self, address, handler, verbose):
        super().__init__(address, handler)
    def init(self, plan):
        print("plan", plan, flush=True)
"""


@pytest.fixture
def horovod(tmp_path: Path) -> Path:
    for name, text in {"common/util/hosts": HOSTS, "http/http_server": SERVER}.items():
        path = tmp_path / f"horovod/runner/{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is free now."""
    with socket.create_server(("", 0)) as server:
        number = int(server.getsockname()[1])
    yield number


def start(folder: Path, port: int, *program: str) -> subprocess.Popen[str]:
    argv = [sys.executable, str(payload.FOLDER / "rendezvous.py"), str(port), "2", "3", *program]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("end", [None, signal.SIGTERM, signal.SIGKILL])
def test_the_server_lives_as_long_as_the_program(horovod: Path, port: int, end: signal.Signals) -> None:
    process = start(horovod, port, "/bin/sh", "-c", "echo program; read line; exit 3")
    assert process.stdout
    lines = {process.stdout.readline(), process.stdout.readline()}  # the program does not wait for the import
    assert lines == {"plan ('node0:3,node1:3', 6)\n", "program\n"}
    assert listens(port)
    if end:
        process.send_signal(end)
    process.communicate("\n" if not end else None)
    assert process.returncode == (-end if end else 3)
    wait_until(lambda: not listens(port))


def test_an_image_without_horovod(tmp_path: Path, port: int) -> None:
    (tmp_path / "horovod.py").touch()
    process = start(tmp_path, port, "echo", "program")
    output = process.communicate()[0]
    assert (process.returncode, output) == (72, "ctrain: launcher gloo needs Horovod in the image\n")


def test_a_broken_horovod_is_named_in_the_log(horovod: Path, port: int) -> None:
    (horovod / "horovod/runner/http/http_server.py").write_text("raise ImportError('no module psutil')\n")
    process = start(horovod, port, "/bin/sh", "-c", "read line")
    assert process.stdout
    message = "ctrain: Horovod's server cannot start, so its ranks do not meet: no module psutil\n"
    assert process.stdout.readline() == message
    process.communicate("\n")


def test_who_comes_before_the_server_is_served(horovod: Path, port: int) -> None:
    package = horovod / "horovod/runner/__init__.py"
    package.write_text("import sys, time\nprint('importing', flush=True)\ntime.sleep(0.3)\n")
    process = start(horovod, port, "/bin/sh", "-c", "read line")
    assert process.stdout
    assert process.stdout.readline() == "importing\n"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(12, socket.MSG_WAITALL) == b"HTTP/1.0 501"
    process.communicate("\n")


def test_a_port_that_is_taken(horovod: Path) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        process = start(horovod, port, "echo", "program")
        output = process.communicate()[0]
    assert (process.returncode, output) == (
        72,
        f"ctrain: cannot listen on port {port} for Horovod's ranks: Address already in use\n",
    )
