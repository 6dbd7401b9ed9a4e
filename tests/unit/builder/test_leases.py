"""Leases keep retired versions from `gc`, but for 90 days at most."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ctrain_builder.store import lifecycle, verify
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.store.store import RETIRED, open_store
from samples.sample_images import write_store

DAY = 86400
IN_2099 = 4_000_000_000  # seconds since 1970


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with a version retired 60 days ago, which a lease until 2099 keeps."""
    root = write_store(tmp_path / "store", {"release": 1})
    with lock_store(root) as writer:
        lifecycle.retire(writer, ["pytorch:24.12-hd-r1"])
    sixty = time.time() - 60 * DAY
    os.utime(root / RETIRED / "pytorch_24.12-hd-py3-r1.json", (sixty, sixty))
    lease = root / "in-use/pytorch_24.12-hd-py3-r1.sif@1c9e"
    lease.touch()
    os.utime(lease, (IN_2099, IN_2099))
    return root


def test_a_lease_until_2099_ends_90_days_after_the_retirement(root: Path) -> None:
    store, now = open_store(root), time.time()
    (one,) = lifecycle.leases_on_retired(store, now)
    assert one.until == pytest.approx(now + 30 * DAY, abs=60)
    assert list(lifecycle.garbage(store, 30, now)) == []
    later = now + 31 * DAY
    assert lifecycle.leases_on_retired(store, later) == []
    assert [one.path.name for one in lifecycle.garbage(store, 30, later)] == ["pytorch_24.12-hd-py3-r1.sif"]


def test_a_lease_until_2099_keeps_a_version_in_the_list_for_90_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_store(tmp_path / "other", {"release": 1}, {"release": 2})
    lease = root / "in-use/pytorch_24.12-hd-py3-r1.sif@1c9e"
    lease.parent.mkdir(exist_ok=True)
    lease.touch()
    os.utime(lease, (IN_2099, IN_2099))
    store, now = open_store(root), time.time()
    (subject, _) = verify.subjects(store)
    assert lifecycle.surplus(store, [], 1, now) == []
    (job,) = lifecycle.needed_by(store, subject.image.name)
    assert job.startswith("a job of ")
    monkeypatch.setattr(time, "time", lambda: now + 91 * DAY)
    assert [one.manifest.release for one in lifecycle.surplus(store, [], 1, time.time())] == [1]
    assert lifecycle.needed_by(store, subject.image.name) == ()
