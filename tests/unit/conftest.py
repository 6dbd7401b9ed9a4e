"""Every unit test runs in a folder of its own, as if nothing of ctrain or Slurm were set on this machine."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from samples.background_calls import wait_for_calls

_numbers = itertools.count()
_failed = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What has a bench takes a run from its submission to its record, with real processes. The builder's are others."""
    for item in items:
        if not item.nodeid.startswith("tests/unit/builder") and "bench" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.whole_run)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """pytest's own looks for a free number among the folders of all tests before it: that grows with their square. And
    it keeps those of three sessions: what is removed later was written to the disk for nothing."""
    name = re.sub(r"\W", "_", request.node.name)[:24]
    path = tmp_path_factory.mktemp(f"{name}-{next(_numbers)}", numbered=False)
    yield path
    if not request.node.stash.get(_failed, False):
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def _clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("CTRAIN_", "SLURM_", "SBATCH_", "PMIX_", "PMI_", "OMPI_", "APPTAINERENV_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    # No machine stops here, and a disk on which images are being built takes seconds. Crashes count the calls.
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def _no_call_outlives_its_test(_clean_surroundings: None) -> Iterator[None]:
    """What a refused request left unanswered would otherwise start its commands among those of the next test."""
    yield
    wait_for_calls()
