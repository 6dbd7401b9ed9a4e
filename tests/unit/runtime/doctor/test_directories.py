from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ctrain_runtime.doctor import Finding, directories
from ctrain_runtime.site import Site


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    free(monkeypatch, 50 * 10**9)
    return tmp_path / "home"


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=size // 1000, f_frsize=1000))


def check(runs: str = "new/runs") -> list[Finding]:
    return list(directories.check_directories(Site(name="ours", scheduler="local", runs=runs)))


def find(subject: str, runs: str = "new/runs") -> Finding:
    return next(finding for finding in check(runs) if finding.subject == subject)


def test_there_is_space_and_nothing_is_left(home: Path, tmp_path: Path) -> None:
    findings = check()
    assert [(one.subject, one.level) for one in findings] == [
        ("runs", "ok"),
        ("clock", "ok"),
        ("home", "ok"),
        ("clock", "ok"),
        ("TMPDIR", "ok"),
    ]
    assert findings[0].text == f"{tmp_path}: 50.0 GB free"
    assert list(tmp_path.iterdir()) == [home]
    assert list(home.iterdir()) == []


def test_little_space_for_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free(monkeypatch, 9 * 10**9)
    assert (find("runs").level, find("runs").text) == ("warn", f"{tmp_path}: 9.0 GB free")
    assert find("runs").hint == "Choose another directory: --runs DIR, or `runs` in a site file"
    assert find("home").level == "ok"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_a_quota_that_is_used_up(code: int, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", fail)
    finding = find("home")
    assert (finding.level, finding.text) == ("fail", f"{home}: cannot write 1 MB: {os.strerror(code)}")
    assert finding.hint == "Free space: du -xh ~ | sort -h | tail"
    assert list(home.iterdir()) == []


def test_runs_that_a_variable_hides() -> None:
    assert find("runs", "$NOT_SET/runs").level == "fail"


def test_the_clock_of_the_file_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's is an hour behind."""
    now = directories.time.time
    monkeypatch.setattr(directories.time, "time", lambda: now() - 3600)
    finding = find("clock")
    assert (finding.level, finding.text.endswith("is 1 h 0 min ahead")) == ("fail", True)


@pytest.mark.parametrize(
    ("directory", "problem"),
    [
        ("tmp", "not an absolute path"),
        ("/not/there", "cannot be written to"),
        ("with,comma", "engines read ':' and ',' as separators"),
    ],
)
def test_a_tmpdir_that_runs_do_not_use(
    directory: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if directory == "with,comma":
        directory = f"{tmp_path}/{directory}"
        Path(directory).mkdir()
    monkeypatch.setenv("TMPDIR", directory)
    finding = find("TMPDIR")
    assert (finding.level, finding.text) == ("warn", f"{directory}: {problem}; runs use /tmp instead")
    assert finding.hint == "Run: unset TMPDIR"
