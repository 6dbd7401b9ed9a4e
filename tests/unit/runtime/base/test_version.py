from __future__ import annotations

import subprocess
from pathlib import Path

from ctrain_runtime.base.version import commit, ctrain_version


def package(top: Path) -> Path:
    path = top / "runtime/ctrain_runtime"
    path.mkdir(parents=True)
    return path


def test_a_wheel_tells_what_it_was_built_from(tmp_path: Path) -> None:
    path = package(tmp_path)
    (path / "share").mkdir()
    (path / "share/commit").write_text("0123456789ab-dirty")
    assert commit(path) == "0123456789ab-dirty"


def test_a_checkout_is_asked(tmp_path: Path) -> None:
    path = package(tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    assert commit(path) == "", "there is none yet"
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert commit(path) == head[:12]


def test_a_repository_around_an_installation_says_nothing(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert commit(package(tmp_path / "lib/python3")) == ""


def test_the_version_is_in_the_name_of_what_pip_has_installed(tmp_path: Path) -> None:
    path = tmp_path / "site-packages/ctrain_runtime"
    (tmp_path / "site-packages/ctrain-1.2.3.dist-info").mkdir(parents=True)
    assert ctrain_version(path) == "1.2.3"


def test_without_one_such_name_the_python_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "site-packages/ctrain_runtime"
    asked = ctrain_version(path)
    for version in ("1.2.3", "1.2.4"):  # of an installation that was cut off
        (tmp_path / f"site-packages/ctrain-{version}.dist-info").mkdir(parents=True)
    assert ctrain_version(path) == asked != "1.2.4"
