"""What a builder's cache records of an image, and what is published of it. Both samples were written by a ctrain that
had one kind of manifest for both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.files import manifest_writer
from ctrain_builder.testing import record
from ctrain_builder.testing.record import RecordedTest
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.store.manifest import TestResult as Result
from ctrain_runtime.store.manifest import checksum, parse_manifest, read_manifest

CACHED = """\
{
  "name": "small",
  "tag": "1.0",
  "stack": "s",
  "digest": "sha256-regions:0",
  "size": 5,
  "arch": "amd64",
  "built": "2026-11-21T04:12:13Z",
  "layers": [
    {
      "definition": "base",
      "key": "k0",
      "size": 1,
      "digest": "sha256:b"
    }
  ],
  "software": {
    "python": "3.11.2"
  },
  "tests": [
    {
      "name": "imports",
      "passed": true,
      "seconds": "1.2",
      "skipped": "",
      "fingerprint": "f1",
      "engine": "apptainer 1.4.5 0123456789ab"
    },
    {
      "name": "GPU",
      "passed": false,
      "seconds": "0.0",
      "skipped": "no GPU",
      "fingerprint": "f2",
      "engine": "apptainer 1.4.5 0123456789ab"
    }
  ],
  "tools": {
    "apptainer": "1.4.5"
  },
  "revision": null,
  "release": 0,
  "published": null,
  "schema": 4,
  "labels": {},
  "base": {
    "reference": "",
    "digest": ""
  },
  "flat": false,
  "requires": {
    "driver": "",
    "older_drivers": [],
    "gpus": [],
    "arch": []
  },
  "signed": false,
  "checksum": "sha256:afccb64becce51469703c2d8d2ef53f5f673b65b4ccae8de193240a02c806aeb"
}
"""
PUBLISHED = """\
{
  "name": "small",
  "tag": "1.0",
  "stack": "s",
  "digest": "sha256:5",
  "size": 5,
  "arch": "amd64",
  "built": "2026-11-21T04:12:13Z",
  "layers": [
    {
      "definition": "base",
      "key": "k0",
      "size": 1,
      "digest": "sha256:b"
    }
  ],
  "software": {
    "python": "3.11.2"
  },
  "tests": [
    {
      "name": "imports",
      "passed": true,
      "seconds": "1.2",
      "skipped": ""
    },
    {
      "name": "GPU",
      "passed": false,
      "seconds": "0.0",
      "skipped": "no GPU"
    }
  ],
  "tools": {
    "apptainer": "1.4.5"
  },
  "revision": null,
  "release": 1,
  "published": "2026-11-22T00:00:00Z",
  "schema": 4,
  "labels": {},
  "base": {
    "reference": "",
    "digest": ""
  },
  "flat": false,
  "requires": {
    "driver": "",
    "older_drivers": [],
    "gpus": [],
    "arch": []
  },
  "signed": false,
  "checksum": "sha256:851538bdb0177788da4c8156bf8d35f9deb8f9b9d61175c9aa74238a9cfe80ac"
}
"""
ENGINE = "apptainer 1.4.5 0123456789ab"


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    path = tmp_path / "small_1.0-s.json"
    path.write_text(CACHED)
    return path


def test_a_record_of_an_earlier_ctrain_is_read_and_written_to_the_byte(cached: Path) -> None:
    found = record.read(cached)
    assert found.tests == (
        RecordedTest("imports", True, "1.2", "", "f1", ENGINE),
        RecordedTest("GPU", False, "0.0", "no GPU", "f2", ENGINE),
    )
    assert manifest_writer.as_text(found) == CACHED


def test_what_is_published_says_what_passed_but_not_how_that_is_known(cached: Path) -> None:
    manifest = record.read(cached).manifest()
    assert type(manifest.tests[0]) is Result
    published = replace(manifest, digest="sha256:5", release=1, published="2026-11-22T00:00:00Z")
    assert manifest_writer.as_text(published) == PUBLISHED
    assert parse_manifest(PUBLISHED.encode(), "x") == published


def test_an_image_in_a_cache_runs_by_its_path(cached: Path) -> None:
    """Its record is its manifest then."""
    assert read_manifest(cached) == record.read(cached).manifest()


def _changed(**changes: Any) -> bytes:
    data = {**json.loads(CACHED), **changes}
    del data["checksum"]
    return json.dumps({**data, "checksum": checksum(data)}).encode()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"release": 1}, "tests: unknown key 'fingerprint'"),
        ({"tests": 3}, "tests must be a list"),
        ({"tests": [3]}, "tests must be a mapping"),
        ({"tests": [{"fingerprint": "f1"}]}, "tests: key 'name' is missing"),
        ({"tests": None}, "tests must be a list"),
    ],
)
def test_what_is_neither_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_manifest(_changed(**changes), "x")


def test_a_record_that_is_gone_is_not_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        record.read(tmp_path / "none.json")
    (tmp_path / "dir.json").mkdir()
    with pytest.raises(ConfigError, match=r"cannot read .*dir\.json"):
        record.read(tmp_path / "dir.json")
