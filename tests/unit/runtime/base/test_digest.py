from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ctrain_runtime.base import digest
from ctrain_runtime.base.digest import file_digest, matches, read_chunks, short

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


@pytest.mark.parametrize("kind", ["sha256", "sha256-regions"])
def test_what_is_shown_of_a_digest_identifies_it(kind: str) -> None:
    whole = f"{kind}:{hashlib.sha256(CONTENT).hexdigest()}"
    shown = short(whole)
    assert (len(shown.partition(":")[2]), digest.kind(shown)) == (12, kind)
    assert [matches(whole, wanted) for wanted in (whole, whole[:-1], shown)] == [True] * 3
    assert [matches(whole, wanted) for wanted in ("", kind, shown[:-1], f"{shown}-", f"{whole}0")] == [False] * 5
    assert not matches(whole, f"sha512:{whole.partition(':')[2]}")
    assert (short(""), short("sha256:0")) == ("", "sha256:0")
