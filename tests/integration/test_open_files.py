"""The builder's cache on a file system where a file that is open leaves another name when it is removed, as on NFS
(.nfs0123): by FUSE (.fuse_hidden0123, Debian's bindfs)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import open_cache


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    if os.geteuid() != 0 or not shutil.which("bindfs"):
        pytest.skip("needs root and bindfs: tests/cluster/install")
    real, seen = tmp_path / "real", tmp_path / "seen"
    for directory in (real, seen):
        directory.mkdir()
    subprocess.run(["bindfs", str(real), str(seen)], check=True)
    try:
        yield open_cache(seen / "cache")
    finally:
        subprocess.run(["umount", "--lazy", str(seen)], check=True)


def test_a_build_leaves_no_work_directory(cache: Cache) -> None:
    with cache.work.create() as work:
        (work / "file").write_text("x")
    assert list((cache.root / "tmp").iterdir()) == []


def test_what_a_killed_build_has_left_is_swept(cache: Cache) -> None:
    left = cache.root / "tmp/ctrain-build-killed00"
    left.mkdir()
    (left / "file").write_text("x")
    assert cache.work.sweep() == []
    assert list((cache.root / "tmp").iterdir()) == []
