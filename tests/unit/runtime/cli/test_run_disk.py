"""Directories that cannot be written, and disks that become full: named, and nothing half-written is left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.runs import Bench, ended


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.end()


def test_a_parent_that_is_not_a_directory(bench: Bench) -> None:
    bench.runs.touch()
    code, _, error = ended(bench.run("--", "true"))
    assert code == 70
    assert f"cannot create the run directory {bench.one}: Not a directory. Choose another parent with --runs" in error
    assert error.count("\n") == 1


@pytest.fixture
def small_disk(bench: Bench) -> Iterator[Path]:
    """A disk of 256 kB for runs."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    bench.runs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(bench.runs)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounts are not allowed here")
    yield bench.runs
    bench.end()
    subprocess.run(["umount", "-l", str(bench.runs)], check=True)


def test_a_disk_that_is_full_before_the_run(bench: Bench, small_disk: Path) -> None:
    subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/fill"], capture_output=True, check=False)
    code, _, error = ended(bench.run("--", "true"))
    assert code == 75
    assert f"cannot create the run directory {bench.one}: No space left on device" in error
    assert [path.name for path in small_disk.iterdir()] == ["fill"]


def test_a_disk_that_becomes_full_while_running(bench: Bench, small_disk: Path) -> None:
    program = 'dd if=/dev/zero of="$CTRAIN_RUN_DIR/checkpoint/big" 2>/dev/null; exit 5'
    code, out, error = ended(bench.run("--", "bash", "-c", program))
    assert code != 0
    assert "Traceback" not in out + error
    assert f"exit code 5; disk full: {bench.one}\n" in out
    assert "cannot write to the run directory: No space left on device. Make it writable" in out
    assert [path.name for path in bench.one.rglob(".*")] == [".submit"]
    (bench.one / "checkpoint/big").unlink()  # space again: the next to look concludes it
    assert ended(bench.attach())[0] == code
    assert bench.record()["exit"]["code"] == code
    assert not bench.orphans()
    assert small_disk.is_dir()
