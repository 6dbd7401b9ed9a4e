"""Fixtures of the run-time's tests: programs on PATH, and the sites that ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.base import paths
from ctrain_runtime.site import files
from samples.sample_images import write_store


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole of PATH: only what a test puts there can be found."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`ctrain install` has installed what is running, in this prefix, which has a store."""
    prefix = tmp_path / "apps/ctrain"
    (prefix / "0.1.0").mkdir(parents=True)
    (prefix / "0.1.0" / paths.INSTALLATION).touch()
    monkeypatch.setattr("sys.prefix", str(prefix / "0.1.0/venv"))
    write_store(prefix / "store")
    return prefix


@pytest.fixture(autouse=True)
def _shipped_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Site files and caches of the machine and of its user must not change what the tests see, nor be changed by them;
    those of the tests are in `etc`, `config` and `cache`, and the home is the current directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "SYSTEM_DIR", tmp_path / "etc" / "ctrain" / "sites")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SCRATCH", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
