"""Fixtures of the run-time's tests: programs on PATH, and the sites that ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime import site


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole of PATH: only what a test puts there can be found."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _shipped_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Site files of the machine and of its user must not change what the tests see."""
    monkeypatch.setattr(site, "FOLDERS", site.FOLDERS[:1])
