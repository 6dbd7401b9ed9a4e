from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import ConfigError, DataError
from ctrain_runtime.run import manifest
from samples.plans import a_plan


def test_data_are_listed_with_digests_where_they_are_small(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/small").write_text("a")
    (tmp_path / "large").write_bytes(b"a" * (manifest.MAX_DIGEST_BYTES + 1))
    os.utime(tmp_path / "large", ns=(5, 7))
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    found = manifest.data_files(tmp_path)
    assert sorted(found) == ["deep/small", "large"]
    assert found["large"] == manifest.DataFile(manifest.MAX_DIGEST_BYTES + 1, 7)
    assert found["deep/small"].digest.startswith("sha256:ca978112")
    assert list(manifest.data_files(tmp_path / "large")) == ["large"]  # as of a SquashFS image


def test_what_is_too_large_or_missing_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in "abc":
        (data / name).touch()
    monkeypatch.setattr(manifest, "MAX_FILES", 2)
    made = manifest.make(a_plan(run_directory=tmp_path / "run", data=str(data)))
    assert (made.data, made.unknown) == ({}, "more than 2 files, or than can be listed in 1 s")
    missing = manifest.make(a_plan(run_directory=tmp_path / "run", data=str(tmp_path / "nowhere")))
    assert "nowhere" in missing.unknown
    assert manifest.make(a_plan(run_directory=tmp_path / "run")).unknown == ""


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        manifest.load(tmp_path)
    (tmp_path / run_files.MANIFEST).write_text('{"ctrain": "1", "code": ')
    with pytest.raises(ConfigError, match="damaged"):
        manifest.load(tmp_path)
