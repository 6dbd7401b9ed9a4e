"""--stage-data: which data sets are copied, and what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.errors import CtrainError, DataError, UsageError
from ctrain_runtime.plan.model import DataCopy, Mount, Options
from ctrain_runtime.plan.mounts import data_mount
from ctrain_runtime.run.data_copy import request_copy
from samples.plans import a_job, a_site

LOCAL_DISKS = a_site(staging="/local")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "images.sqfs"
    path.write_bytes(b"hsqs")
    return path


def test_the_file_of_the_data_set_is_read_once(data: Path) -> None:
    reports: list[str] = []
    mount = Mount(str(data), "/data", read_only=True, is_image=True)
    copies = [request_copy(mount, LOCAL_DISKS, lambda what, _: reports.append(what)) for _ in range(2)]
    assert copies == [DataCopy(mount, f"sha256:{hashlib.sha256(b'hsqs').hexdigest()}", 4, "/local")] * 2
    assert list(dict.fromkeys(reports)) == [f"reading {data}", ""]


@pytest.mark.parametrize(
    ("options", "site", "kind", "message"),
    [
        ({}, LOCAL_DISKS, UsageError, "--stage-data: the run has no data set. Pass --data FILE.sqfs"),
        ({"data": "/images"}, LOCAL_DISKS, UsageError, "not the directory /images. Make one, once, with: mksquashfs"),
        ({"data": "/x.sqfs"}, a_site(), UsageError, "site neuron names no directory on the nodes' own disks. Set"),
        (
            {"data": "/missing.sqfs"},
            LOCAL_DISKS,
            DataError,
            "the data set /missing.sqfs: No such file or directory",
        ),
    ],
)
def test_what_cannot_be_copied(options: dict[str, Any], site: Any, kind: type[CtrainError], message: str) -> None:
    with pytest.raises(kind) as caught:
        request_copy(data_mount(a_job(), site, Options(**options)), site, lambda *_: None)
    assert message in str(caught.value)
