"""From a wheel to `ctrain doctor`, as docs/installing.md has it: as root and as an ordinary user, by Debian's own
Python, with this machine's own settings of pip, in an environment that has nothing of the tests."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from samples.long_mode import LONG
from samples.wheels import build_wheel

PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def wheel(
    checkout: Path, project_files: list[PurePosixPath], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Where all users can read it."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(shutil.copy(build_wheel(checkout, project_files, tmp_path_factory.mktemp("build")), place))


class User:
    """A user with an empty home."""

    def __init__(self, name: str, home: Path) -> None:
        self.home, self.prefix = home, home / "apps/ctrain"
        self._account = pwd.getpwnam(name)
        os.chown(home, self._account.pw_uid, self._account.pw_gid)

    def run(self, *argv: object, umask: int = 0o077) -> subprocess.CompletedProcess[str]:
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        return subprocess.run(
            list(map(str, argv)),
            cwd=self.home,
            env={**pip, "HOME": str(self.home), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
            user=self._account.pw_uid,
            group=self._account.pw_gid,
            extra_groups=[],
            umask=umask,
            capture_output=True,
            text=True,
        )


@pytest.fixture(params=["root", "nobody"] if LONG else ["root"])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("CI must run as root: the test becomes another user")
        pytest.skip("not root: this test becomes another user")
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        yield User(request.param, Path(home))


def passed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_from_a_wheel_to_doctor(user: User, wheel: Path) -> None:
    passed(user.run(PYTHON, "-m", "venv", "own"))
    passed(user.run("own/bin/pip", "install", "--quiet", wheel))
    install = ("own/bin/ctrain", "install", "--prefix", user.prefix)
    version = wheel.name.split("-")[1]
    assert f"installed  {user.prefix}/{version}\ncurrent    {version}\n" in passed(user.run(*install))

    shutil.rmtree(user.home / "own")  # nothing depends on it
    with tempfile.TemporaryDirectory() as home:
        other = User("nobody", Path(home))
        said = passed(other.run(user.prefix / "current/bin/ctrain", "--version"))
        assert said.splitlines()[0] == f"ctrain {version}"
        found = json.loads(other.run(user.prefix / "current/bin/ctrain", "doctor", "--json").stdout)["findings"]
    (store,) = (one for one in found if one["subject"] == f"store {user.prefix}/store")
    assert "ctrain build pytorch-cpu-slim && ctrain publish " in store["hint"]
    assert [one for one in found if one["level"] != "ok" and not one["hint"]] == [], "each has its line to type"

    again = (user.prefix / "current/bin/ctrain", "install", "--prefix", user.prefix, "--wheel", wheel)
    assert f"unchanged  {user.prefix}/{version}\n" in passed(user.run(*again))
    if user.prefix.owner() == "root":
        check_disks(user, wheel)


def check_disks(root: User, wheel: Path) -> None:
    """A disk that becomes full in the middle, and one that is read-only: one line, and no half version."""
    directory = root.home / "disk"
    directory.mkdir()
    argv = [root.prefix / "current/bin/ctrain", "install", "--prefix", directory, "--wheel", wheel]
    install = shlex.join(map(str, argv))
    for options, code, complaint in (
        ("size=28m", 75, f"ctrain: no space left for {directory}. "),
        ("ro", 70, "Read-only file system. Choose a directory that you can write to: --prefix DIR"),
    ):
        script = (
            f"mount -t tmpfs -o {options} none {directory} || exit 1; {install}; code=$?; ls {directory}; exit $code"
        )
        done = root.run("unshare", "--mount", "sh", "-c", script)
        assert (done.returncode, complaint in done.stderr.splitlines()[-1]) == (code, True), done.stderr
        assert {*done.stdout.split()} <= {"sites", "store"}
