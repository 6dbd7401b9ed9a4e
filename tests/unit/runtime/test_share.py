from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime import share
from ctrain_runtime.errors import CtrainError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation in an empty folder; returns the package's folder."""
    package = tmp_path / "runtime/ctrain_runtime"
    package.mkdir(parents=True)
    monkeypatch.setattr(share, "__file__", str(package / "share.py"))
    return package


def test_in_a_checkout(package: Path) -> None:
    (package.parents[1] / "examples").mkdir()
    assert share.data_dir("examples") == package.parents[1] / "examples"


def test_the_copy_of_a_wheel_comes_first(package: Path) -> None:
    (package.parents[1] / "examples").mkdir()
    (package / "share/examples").mkdir(parents=True)
    assert share.data_dir("examples") == package / "share/examples"


@pytest.mark.usefixtures("package")
def test_neither() -> None:
    with pytest.raises(CtrainError, match=r"incomplete installation: directory examples/ not found. Reinstall ctrain"):
        share.data_dir("examples")
