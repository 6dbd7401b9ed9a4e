"""What `make dist` makes of a commit: the same bytes each time, with what tells where they come from."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.whole_run


def git(checkout: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", checkout, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture(scope="module")
def releases(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two of the same commit, by people with other umasks."""
    made = []
    for umask in ("022", "077"):
        target = tmp_path_factory.mktemp(f"umask{umask}") / "dist"
        line = f'umask {umask}; exec "$@"'
        done = subprocess.run(
            ["bash", "-c", line, "bash", sys.executable, checkout / ".ci/dist", target], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        made.append(target)
    return made


def contents(release: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in release.iterdir()}


def test_the_same_commit_is_the_same_bytes(releases: list[Path]) -> None:
    one, other = map(contents, releases)
    assert sorted(path.partition("-")[2][5:] for path in one if path.startswith("ctrain-")) == [
        "-py3-none-any.whl",
        ".cdx.json",
        ".tar.gz",
    ]
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []


def test_the_checksums_are_those_of_all_files(releases: list[Path]) -> None:
    files = contents(releases[0])
    lines = files.pop("SHA256SUMS").decode().splitlines()
    assert lines == [f"{hashlib.sha256(files[name]).hexdigest()}  {name}" for name in sorted(files)]


def test_both_archives_tell_their_commit(releases: list[Path], checkout: Path) -> None:
    head = git(checkout, "rev-parse", "--short=12", "HEAD").strip()
    [wheel], [sdist] = releases[0].glob("*.whl"), releases[0].glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("ctrain_runtime/share/commit").decode() == head
    with tarfile.open(sdist) as packed:
        [member] = [name for name in packed.getnames() if name.endswith("/commit")]
        file = packed.extractfile(member)
        assert file is not None
        assert file.read().decode() == head
        assert {(one.uid, one.gid, one.uname) for one in packed.getmembers()} == {(0, 0, "")}


def test_a_wheel_of_the_sdist_is_the_wheel(releases: list[Path], tmp_path: Path) -> None:
    """Whoever builds from the sdist gets all that the wheel has."""
    [wheel], [sdist] = releases[0].glob("*.whl"), releases[0].glob("*.tar.gz")
    argv = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, sdist]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [again] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
        assert [name for name in one.namelist() if name[-6:] != "RECORD" and one.read(name) != other.read(name)] == []


def test_what_it_needs_is_listed(releases: list[Path], checkout: Path) -> None:
    [path] = releases[0].glob("*.cdx.json")
    listed = json.loads(path.read_text())
    assert (listed["bomFormat"], listed["metadata"]["component"]["name"]) == ("CycloneDX", "ctrain")
    pinned = (checkout / ".ci/requirements.txt").read_text()
    assert [f"{one['name']}=={one['version']}" for one in listed["components"]] == re.findall(r"(?m)^\S+==\S+", pinned)
    assert sum(len(one["hashes"]) for one in listed["components"]) == pinned.count("--hash=sha256:")


def test_before_a_commit_runs_what_ci_runs_first(checkout: Path) -> None:
    [repository] = yaml.safe_load((checkout / ".pre-commit-config.yaml").read_text())["repos"]
    [hook] = repository["hooks"]
    workflow = yaml.safe_load((checkout / ".github/workflows/ci.yml").read_text())
    assert hook["entry"] == "make check"
    assert workflow["jobs"]["check"]["steps"][-1]["run"].startswith("make check")


@pytest.mark.parametrize("name", ["problem.yml", "wish.yml"])
def test_forms_ask_for_something(checkout: Path, name: str) -> None:
    form = yaml.safe_load((checkout / ".github/ISSUE_TEMPLATE" / name).read_text())
    assert form.keys() == {"name", "description", "body"}
    fields = [field for field in form["body"] if field["type"] == "textarea"]
    assert any(field.get("validations", {}).get("required") for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
