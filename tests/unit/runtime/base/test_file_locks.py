"""Locks that exclude NFS clients, for whom another process locks the file's bytes, as an NFS server does."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from ctrain_runtime.base import file_systems
from ctrain_runtime.base.file_locks import lock_open_file

CLIENT = """\
import fcntl, sys, time
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("kind", "excluded"), [("xfs", True), ("nfs4", False)])
def test_what_a_client_holds_its_server_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, excluded: bool
) -> None:
    """On NFS itself its own flock would be both, and only the server knows of others."""
    table = tmp_path / "mounts"
    table.write_text(f"40 22 0:40 / {tmp_path} rw - {kind} server:/x rw\n")
    monkeypatch.setattr(file_systems, "_TABLE", table)
    path = tmp_path / "lock"
    path.touch()
    argv = [sys.executable, "-c", CLIENT, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout and client.stdin and client.stdout.readline() == "held\n"
        with path.open("r+b") as file:
            if excluded:
                with pytest.raises(BlockingIOError):
                    lock_open_file(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with pytest.raises(BlockingIOError):
                    lock_open_file(file, path, fcntl.LOCK_SH | fcntl.LOCK_NB)
            else:
                lock_open_file(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        client.stdin.close()
        with path.open("r+b") as file:
            lock_open_file(file, path, fcntl.LOCK_EX)
            assert subprocess.run(argv, capture_output=True).returncode == int(excluded)
