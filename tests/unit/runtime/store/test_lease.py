"""Leases: a job tells the store that it needs its image."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest

from ctrain_runtime.store import lease

NOW = 1_000_000.0


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    (tmp_path / lease.LEASES).mkdir()
    return tmp_path / lease.LEASES


def put(path: Path, until: float) -> None:
    path.touch()
    os.utime(path, (until, until))


def test_a_run_leaves_a_lease_and_takes_it_back(tmp_path: Path, leases: Path) -> None:
    image = tmp_path / "small_1.0-s-py3-r1.sif"
    path = lease.lease_path(lease.writable_lease_dir(image), str(image), Path("/runs/one"))
    assert Path(path).parent == leases
    lease.acquire(path, "/runs/one")
    (found,) = lease.active(tmp_path, time.time()).values()
    assert (found.image, found.owner) == (image.name, pwd.getpwuid(os.geteuid()).pw_name)
    assert 0 <= time.time() + lease.MAX_LEASE_SECONDS - found.until < 60
    assert lease.active(tmp_path, found.until) == {}
    lease.release(path)
    assert list(leases.iterdir()) == []


def test_each_run_has_its_own(leases: Path) -> None:
    assert lease.lease_path(str(leases), "/a.sif", Path("/runs/one")) != lease.lease_path(
        str(leases), "/a.sif", Path("/runs/two")
    )


def test_without_the_folder_there_is_none(tmp_path: Path) -> None:
    assert lease.writable_lease_dir(tmp_path / "a.sif") == ""
    assert lease.lease_path("", "/a.sif", Path("/runs/one")) == ""
    lease.acquire("", "/runs/one")
    lease.release("")
    assert lease.active(tmp_path, NOW) == {}


def test_a_lease_that_can_not_be_made_stops_no_run(tmp_path: Path) -> None:
    lease.acquire(str(tmp_path / "gone" / "a.sif@1"), "/runs/one")
    lease.release(str(tmp_path / "gone" / "a.sif@1"))


def test_of_several_leases_the_last_one_counts(tmp_path: Path, leases: Path) -> None:
    for number, until in enumerate((NOW + 50, NOW + 90, NOW + 10, NOW - 1)):
        put(leases / f"a.sif@{number}", until)
    assert lease.active(tmp_path, NOW)["a.sif"].until == NOW + 90


def test_ended_leases_are_swept(tmp_path: Path, leases: Path) -> None:
    put(leases / "a.sif@1", NOW)
    put(leases / "a.sif@2", NOW + 1)
    put(leases / "note", NOW - 5)  # not ours
    lease.sweep(tmp_path, NOW)
    assert sorted(path.name for path in leases.iterdir()) == ["a.sif@2", "note"]


def test_a_link_in_the_place_of_a_lease_leads_nowhere(tmp_path: Path, leases: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    os.utime(other, (NOW, NOW))
    (leases / "a.sif@1").symlink_to(other)
    lease.acquire(str(leases / "a.sif@1"), "/runs/one")
    assert other.stat().st_mtime == NOW
