"""This ctrain, packed for a login node; the rest: cli/test_on.py."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ctrain_runtime.base.version import ctrain_version
from ctrain_runtime.remote import own_copy
from samples.programs import SYSTEM, write_program

pytestmark = pytest.mark.whole_run


def receive(home: Path) -> subprocess.CompletedProcess[bytes]:
    write_program(home / "python3", f'#!/bin/bash\nexec {shlex.quote(sys.executable)} "$@"\n')
    with own_copy.pack() as packed:
        packed.seek(0)
        return subprocess.run(
            ["bash", "-s", "one"],
            stdin=packed,
            env={"HOME": str(home), "PATH": f"{home}:{SYSTEM}"},
            capture_output=True,
        )


def test_it_is_whole_and_starts(tmp_path: Path) -> None:
    for _ in range(2):  # as by two connections at once
        done = receive(tmp_path)
        assert done.returncode == 0, done.stderr
    (copy,) = (tmp_path / own_copy.PLACE).iterdir()
    environment = {"PATH": f"{tmp_path}:{SYSTEM}", "PYTHONPATH": "/nowhere"}
    shown = subprocess.run([copy / "bin/ctrain", "--version"], env=environment, stdout=subprocess.PIPE, text=True)
    assert shown.stdout.startswith(f"ctrain {ctrain_version() or 'unknown'}\n")
    listed = subprocess.run([copy / "bin/ctrain", "run", "nothing"], env=environment, stderr=subprocess.PIPE, text=True)
    assert "gpt" in listed.stderr  # the packaged jobs
    for path in (
        "payload/ctrain_program.py",
        "remote/receive.sh",
        "share/definitions/ngc.yaml",
        "share/docs/laptop.md",
    ):
        file = copy / "ctrain_runtime" / path
        assert (file.is_file(), file.is_symlink()) == (True, False), path
    assert not list(copy.rglob("*.so"))


def test_what_is_cut_short_leaves_nothing(tmp_path: Path) -> None:
    with own_copy.pack() as packed:
        packed.seek(0)
        part = packed.read(100_000)
    done = subprocess.run(
        ["bash", "-s", "one"], input=part, env={"HOME": str(tmp_path), "PATH": SYSTEM}, capture_output=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"ctrain: cannot unpack to {tmp_path}/{own_copy.PLACE}: ".encode())
    assert not list((tmp_path / own_copy.PLACE).iterdir())
