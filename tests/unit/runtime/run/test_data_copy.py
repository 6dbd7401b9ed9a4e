"""--stage-data: what identifies the data set that is copied."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from ctrain_runtime.errors import DataError
from ctrain_runtime.plan.model import Mount
from ctrain_runtime.run.data_copy import digest_and_size


def test_the_file_of_the_data_set_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "images.sqfs"
    data.write_bytes(b"hsqs")
    reports: list[str] = []
    mount = Mount(str(data), "/data", read_only=True, is_image=True)
    found = [digest_and_size(mount, lambda what, _: reports.append(what)) for _ in range(2)]
    assert found == [(f"sha256:{hashlib.sha256(b'hsqs').hexdigest()}", 4)] * 2
    assert list(dict.fromkeys(reports)) == [f"reading {data}", ""]


def test_a_data_set_that_cannot_be_read() -> None:
    mount = Mount("/missing.sqfs", "/data", read_only=True, is_image=True)
    with pytest.raises(DataError, match=re.escape("the data set /missing.sqfs: No such file or directory")):
        digest_and_size(mount, lambda *_: None)
