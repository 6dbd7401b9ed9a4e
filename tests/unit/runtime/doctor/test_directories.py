from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctrain_runtime.doctor import Finding, directories
from ctrain_runtime.site.select import select_site


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # else that of an earlier test
    for name in ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    free(monkeypatch, 50 * 10**9)
    return tmp_path / "home"


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=size // 1000, f_frsize=1000))


def check(**keys: Any) -> list[Finding]:
    selected = select_site("local")
    return list(
        directories.check_directories(replace(selected, site=replace(selected.site, **{"runs": "new/runs", **keys})))
    )


def find(subject: str, **keys: Any) -> Finding:
    return next(finding for finding in check(**keys) if finding.subject == subject)


def test_there_is_space_and_nothing_is_left(home: Path, tmp_path: Path) -> None:
    findings = check()
    assert [(one.subject, one.level) for one in findings] == [
        ("runs", "ok"),
        ("clock", "ok"),
        ("image_cache", "ok"),
        ("home", "ok"),
        ("engine tmp", "ok"),
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


def test_little_space_for_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free(monkeypatch, 9 * 10**9)
    for name in ("shared", "disk", "scratch"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("SINGULARITY_TMPDIR", str(tmp_path / "scratch"))
    keys = {"image_cache": str(tmp_path / "shared"), "staging": str(tmp_path / "disk")}
    for subject, name in (("image_cache", "shared"), ("staging", "disk"), ("engine tmp", "scratch")):
        finding = find(subject, **keys)
        assert (finding.level, finding.text) == ("warn", f"{tmp_path / name}: 9.0 GB free")
        assert finding.hint
    free(monkeypatch, 29 * 10**9)
    levels = {finding.subject: finding.level for finding in check(**keys)}
    assert (levels["image_cache"], levels["staging"], levels["engine tmp"]) == ("ok", "ok", "warn")


def test_a_cache_of_the_site_that_this_user_cannot_write_to(tmp_path: Path) -> None:
    """Pulled images then land in the user's own, which ctrain creates."""
    assert find("image_cache", image_cache="/not/there").text == f"{tmp_path}: 50.0 GB free"
    assert find("image_cache", image_cache="$NOT_SET").level == "fail"


def test_directories_of_images_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = find("staging", staging="/not/there")
    assert (finding.level, finding.text) == ("warn", "/not/there: not found on this machine")
    monkeypatch.setenv("APPTAINER_TMPDIR", "/not/there")
    finding = find("engine tmp")
    assert (finding.level, finding.text) == ("fail", "/not/there: cannot write 1 MB: No such file or directory")


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
    assert find("runs", runs="$NOT_SET/runs").level == "fail"


def test_the_clock_of_the_file_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's is an hour behind."""
    now = directories.time.time
    monkeypatch.setattr(directories.time, "time", lambda: now() - 3600)
    finding = find("clock")
    assert (finding.level, finding.text.endswith("is 1 h 0 min ahead")) == ("fail", True)


def test_each_file_server_has_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path) -> None:
    of_files = Path.stat

    def stat(path: Path, **options: Any) -> Any:
        return SimpleNamespace(st_dev=7) if path == home else of_files(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    clocks = [finding.text for finding in check(image_cache=str(tmp_path)) if finding.subject == "clock"]
    assert clocks == [f"agrees with the file server of {directory}" for directory in (tmp_path, home)]


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
