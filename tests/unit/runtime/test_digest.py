from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ctrain_runtime import digest
from ctrain_runtime.digest import file_digest, read_chunks

CONTENT = bytes(range(256)) * 10


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of several chunks."""
    monkeypatch.setattr(digest, "CHUNK_BYTES", 100)
    (tmp_path / "file").write_bytes(CONTENT)
    return tmp_path / "file"


@pytest.mark.parametrize(("offset", "size"), [(0, None), (0, 0), (7, None), (7, 250), (100, 100), (2500, 1000)])
def test_the_digest_of_a_file_or_a_part_of_it(file: Path, offset: int, size: int) -> None:
    part = CONTENT[offset:] if size is None else CONTENT[offset : offset + size]
    assert file_digest(file, offset, size) == f"sha256:{hashlib.sha256(part).hexdigest()}"


def test_chunks_leave_the_file_behind_the_last_byte(file: Path) -> None:
    with file.open("rb") as opened:
        assert b"".join(read_chunks(opened, 250)) == CONTENT[:250]
        assert opened.read() == CONTENT[250:]
