from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ctrain_runtime.base import paths
from ctrain_runtime.errors import CtrainError


def test_only_a_leading_tilde_of_a_known_user_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/kim")
    assert paths.expand_home("~") == Path("/home/kim")
    assert paths.expand_home("~/x ~") == Path("/home/kim/x ~")
    assert paths.expand_home("~nobody-here/x") == Path("~nobody-here/x")
    assert paths.expand_home("a/~") == Path("a/~")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation in an empty folder; returns the package's folder."""
    package = tmp_path / "runtime/ctrain_runtime"
    package.mkdir(parents=True)
    monkeypatch.setattr(paths, "__file__", str(package / "base/paths.py"))
    return package


def test_in_a_checkout(package: Path) -> None:
    (package.parents[1] / "examples").mkdir()
    assert paths.data_dir("examples") == package.parents[1] / "examples"


def test_the_copy_of_a_wheel_comes_first(package: Path) -> None:
    (package.parents[1] / "examples").mkdir()
    (package / "share/examples").mkdir(parents=True)
    assert paths.data_dir("examples") == package / "share/examples"


@pytest.mark.usefixtures("package")
def test_neither() -> None:
    with pytest.raises(CtrainError, match=r"incomplete installation: directory examples/ not found. Reinstall ctrain"):
        paths.data_dir("examples")


def test_what_ctrain_install_has_installed_knows_its_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path / "0.1.0/venv"))
    (tmp_path / "0.1.0/venv").mkdir(parents=True)
    assert paths.installation_prefix() is None
    (tmp_path / "0.1.0" / paths.INSTALLATION).touch()
    assert paths.installation_prefix() == tmp_path


def test_a_missing_package_is_not_put_where_all_users_or_no_pip_would_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert paths.missing_package_hint("spython") == f"Run: {sys.executable} -m pip install spython"
    monkeypatch.setattr(paths, "find_spec", lambda _name: None)
    assert paths.missing_package_hint("spython") == "Install ctrain again, with [build]; see: ctrain help installing"
    (tmp_path / "0.1.0/venv").mkdir(parents=True)
    (tmp_path / "0.1.0" / paths.INSTALLATION).touch()
    monkeypatch.setattr("sys.prefix", str(tmp_path / "0.1.0/venv"))
    hint = f"The ctrain in {tmp_path} is for all users: install your own, with [build]; see: ctrain help installing"
    assert paths.missing_package_hint("spython") == hint
