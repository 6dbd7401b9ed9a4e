"""File systems by FUSE whose server is a child of the test: it can be killed, and its end can be waited for."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path


def serve(argv: list[str], place: Path) -> subprocess.Popen[bytes]:
    """The server of the file system that `argv` mounts at `place`, which must be told to stay in the foreground."""
    server = subprocess.Popen([*argv, str(place)])
    while not place.is_mount():
        assert server.poll() is None, f"{argv[0]} ended with {server.returncode}"
        time.sleep(0.01)
    return server


@contextlib.contextmanager
def mounted(argv: list[str], place: Path) -> Iterator[None]:
    """As serve(). At the end the server is gone too: until then it would keep what it reads busy."""
    server = serve(argv, place)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)
        server.kill()  # a namespace that began meanwhile, as that of the cluster's node, still has the mount
        server.wait()
