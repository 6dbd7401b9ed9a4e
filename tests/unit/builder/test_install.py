"""ctrain install, with a stand-in for Python, venv and pip; test_install_real.py has the real ones."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.files import locks
from ctrain_builder.install import source
from ctrain_builder.install.prefix import _LOCK, Prefix, changing
from ctrain_runtime.base import file_systems
from ctrain_runtime.cli.main import main
from ctrain_runtime.errors import UsageError
from ctrain_runtime.store.store import open_store
from samples.programs import write_program
from samples.wheels import write_wheel

# Called with -I: `-c CODE`, `-m venv DIR`, `-m pip ... REQUIREMENT`, or a script. FAIL names what fails.
PYTHON = r"""#!/bin/bash
printf '%s\n' "$*" >>"$CALLS"
fail() { if [ "$FAIL" = "$1" ]; then echo "noise" >&2; echo "${WHY:-it is broken}" >&2; exit 1; fi; }
case $2 in
    -c) fail ensurepip ;;
    -m)
        fail "$3"
        if [ "$3" = venv ]; then
            mkdir -p "$4/bin"
            cp "$0" "$4/bin/python"
            echo "home = ${0%/*}" >"$4/pyvenv.cfg"
        else
            if [ "$FAIL" = wait ]; then touch "$CALLS.waiting"; sleep 600; fi
            grep -oE '[0-9]+\.[0-9]+\.[0-9]+' <<<"${!#}" | head -1 >"${0%python}ctrain"
        fi
        ;;
    *)
        if [ "$3" = --version ]; then echo "ctrain ${SAYS:-$(cat "$2")}"; else echo "completion for $4"; fi
        ;;
esac
"""
Install = Callable[..., str]


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FAIL", "")
    return write_program(tmp_path / "python3", PYTHON)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return tmp_path / "apps/ctrain"


@pytest.fixture
def ctrain(python: Path, prefix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Install:
    def run(*argv: str, code: int = 0, version: str = "") -> str:
        """`ctrain install`, of a wheel of this version if one is named: what it prints; in case of an error, that."""
        wheel = ["--wheel", str(write_wheel(tmp_path, "ctrain", version, ""))] if version else []
        arguments = ["--prefix", str(prefix), "--python", str(python), *wheel, *argv]
        assert main(BUILD_VERBS, ["install", *arguments]) == code
        output = capsys.readouterr()
        return output.err if code else output.out

    return run


def tree(root: Path) -> dict[str, tuple[int, str]]:
    """Time and content of every file."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}


def current(prefix: Path) -> str:
    return str((prefix / "current").readlink())


def test_the_first_version_is_the_current_one(ctrain: Install, prefix: Path) -> None:
    said = ctrain(version="0.1.0")
    assert f"installed  {prefix}/0.1.0\ncurrent    0.1.0\n" in said
    assert f"module use {prefix}/modulefiles && module load ctrain" in said
    assert f"next       {prefix}/current/bin/ctrain doctor\n" in said
    assert current(prefix) == "0.1.0"
    assert [path.name for path in (prefix / "current/bin").iterdir()] == ["ctrain"], "users keep their own python"
    assert (prefix / "0.1.0/share/bash-completion/completions/ctrain").read_text() == "completion for bash\n"
    assert (prefix / "0.1.0/share/zsh/site-functions/_ctrain").read_text() == "completion for zsh\n"
    assert open_store(prefix / "store").images() == ()
    assert list((prefix / "sites").iterdir()) == []


def test_an_upgrade_lies_beside_the_old_version_until_it_is_switched_to(ctrain: Install, prefix: Path) -> None:
    ctrain(version="0.1.0")
    (prefix / "sites/ours.yaml").write_text("scheduler: local\n")
    old = tree(prefix / "0.1.0")
    said = ctrain(version="0.2.0")
    assert f"current    0.1.0\nswitch     ctrain install --prefix {prefix} --switch 0.2.0\n" in said
    assert current(prefix) == "0.1.0"
    assert "current is now 0.2.0" in ctrain("--switch", "0.2.0")
    assert current(prefix) == "0.2.0"
    ctrain("--switch", "0.1.0")
    assert current(prefix) == "0.1.0"
    assert tree(prefix / "0.1.0") == old
    assert [path.name for path in (prefix / "sites").iterdir()] == ["ours.yaml"]
    assert not [path for path in prefix.iterdir() if path.name.startswith(".")]
    first, second = (" ".join(line.split()) for line in ctrain("--list").splitlines()[1:])
    assert first.startswith("0.1.0 current 20") and first.endswith("/ctrain-0.1.0-py3-none-any.whl")
    assert second.startswith("0.2.0 20")


def test_an_older_version_switches_to_one_of_which_it_does_not_know_all(ctrain: Install, prefix: Path) -> None:
    ctrain(version="0.1.0")
    ctrain(version="0.2.0")
    file = prefix / "0.2.0/ctrain-installation.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "colour": "red"}))
    ctrain("--switch", "0.2.0")
    assert current(prefix) == "0.2.0"


@pytest.mark.parametrize("text", ["", "[1]", "3", "{}"])
def test_a_damaged_version_is_named(ctrain: Install, prefix: Path, text: str) -> None:
    ctrain(version="0.1.0")
    file = prefix / "0.1.0/ctrain-installation.json"
    file.write_text(text)
    error = ctrain("--switch", "0.1.0", code=66)
    assert str(file) in error and error.count("\n") == 1


def test_what_a_complete_version_lacks_is_not_added_to_it(ctrain: Install, prefix: Path) -> None:
    ctrain(version="0.1.0")
    what = f"ctrain 0.1.0 in {prefix} is without [build], and a complete version never changes"
    refused = f"ctrain: {what}. If no program uses it: rm -r {prefix}/0.1.0; then retry\n"
    assert ctrain("--extras", "build", version="0.1.0", code=64) == refused
    shutil.rmtree(prefix / "0.1.0")
    assert "installed  " in ctrain("--extras", "build", version="0.1.0")
    assert current(prefix) == "0.1.0"
    for extras in ("build", ""):
        assert "unchanged  " in ctrain("--extras", extras, version="0.1.0")


def test_modules_of_all_versions_and_the_default(ctrain: Install, prefix: Path) -> None:
    for version in ("0.1.0", "0.2.0"):
        ctrain(version=version)
    modules = prefix / "modulefiles/ctrain"
    names = {".modulerc", ".modulerc.lua", "0.1.0", "0.1.0.lua", "0.2.0", "0.2.0.lua"}
    assert {path.name for path in modules.iterdir()} == names
    assert f'prepend-path PATH "{prefix}/0.2.0/bin"\n' in (modules / "0.2.0").read_text()
    assert f'prepend_path("PATH", "{prefix}/0.2.0/bin")\n' in (modules / "0.2.0.lua").read_text()
    assert (modules / ".modulerc").read_text() == "#%Module1.0\nmodule-version ctrain/0.1.0 default\n"
    ctrain("--switch", "0.2.0")
    assert (modules / ".modulerc").read_text() == "#%Module1.0\nmodule-version ctrain/0.2.0 default\n"
    assert (modules / ".modulerc.lua").read_text() == 'module_version("ctrain/0.2.0", "default")\n'


def test_a_complete_version_is_never_written_to(ctrain: Install, prefix: Path, tmp_path: Path) -> None:
    ctrain(version="0.1.0")
    before, calls = tree(prefix / "0.1.0"), (tmp_path / "calls").read_text()
    assert f"unchanged  {prefix}/0.1.0\n" in ctrain(version="0.1.0")
    assert tree(prefix / "0.1.0") == before
    assert (tmp_path / "calls").read_text() == calls, "no venv, no pip"


@pytest.mark.parametrize(
    ("fails", "why", "code", "complaint"),
    [
        ("ensurepip", "", 70, "it has no ensurepip. Run as root: apt install python3-venv; or choose another"),
        ("venv", "", 70, "-m venv failed: it is broken. Choose another: --python PROGRAM"),
        (
            "pip",
            "ERROR: No matching distribution found for pyyaml",
            70,
            "failed: ERROR: No matching distribution found",
        ),
        ("pip", "ERROR: [Errno 28] No space left on device", 75, "no space left for "),
    ],
)
def test_what_fails_is_one_line_and_leaves_no_half_version(
    ctrain: Install, prefix: Path, monkeypatch: pytest.MonkeyPatch, fails: str, why: str, code: int, complaint: str
) -> None:
    ctrain(version="0.1.0")
    monkeypatch.setenv("FAIL", fails)
    monkeypatch.setenv("WHY", why)
    said = ctrain(version="0.2.0", code=code)
    assert complaint in said
    assert [line for line in said.splitlines() if "installing" not in line] == [said.splitlines()[-1]]
    assert not (prefix / "0.2.0").exists()
    assert current(prefix) == "0.1.0"
    monkeypatch.setenv("FAIL", "")
    ctrain(version="0.2.0")
    ctrain("--switch", "0.2.0")


def test_a_nearly_full_disk_is_named_where_venv_says_nothing(ctrain: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "venv")
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=5_000_000))
    assert "no space left for " in ctrain(version="0.1.0", code=75)


def test_what_does_not_start_as_this_version_is_not_installed(
    ctrain: Install, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAYS", "3.1.4")
    assert "what pip has installed says 'ctrain 3.1.4', not ctrain 0.1.0" in ctrain(version="0.1.0", code=70)
    assert not (prefix / "0.1.0").exists()


def test_after_a_kill_the_next_installation_removes_what_was_left(
    ctrain: Install, prefix: Path, python: Path, tmp_path: Path, checkout: Path
) -> None:
    wheel = str(write_wheel(tmp_path, "ctrain", "0.2.0", ""))
    roots = os.pathsep.join(str(checkout / name) for name in ("builder", "runtime"))  # as pytest has them
    code = "import sys; from ctrain_builder.cli.main import main; sys.exit(main())"
    argv = [sys.executable, "-c", code, "install", "--prefix", str(prefix), "--python", str(python), "--wheel", wheel]
    process = subprocess.Popen(argv, env={**os.environ, "FAIL": "wait", "PYTHONPATH": roots}, start_new_session=True)
    while not (tmp_path / "calls.waiting").exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert (prefix / "0.2.0/venv").is_dir()
    assert "no ctrain is installed" in ctrain("--list", code=64)
    assert "ctrain 0.2.0 is not installed" in ctrain("--switch", "0.2.0", code=64)
    ctrain(version="0.1.0")
    assert not (prefix / "0.2.0").exists()
    (prefix / "0.3.0").mkdir()  # killed a moment earlier
    ctrain(version="0.3.0")


@pytest.mark.parametrize("name", ["0.1.0", "current"])
def test_what_ctrain_did_not_make_stays(ctrain: Install, prefix: Path, name: str) -> None:
    (prefix / name).mkdir(parents=True)
    (prefix / name / "thesis.tex").touch()
    assert f"{prefix / name} " in ctrain(version="0.1.0", code=64)
    assert [path.name for path in (prefix / name).iterdir()] == ["thesis.tex"]


def test_all_users_can_read_it_whatever_the_umask(ctrain: Install, prefix: Path) -> None:
    before = os.umask(0o077)
    try:
        ctrain(version="0.1.0")
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    closed = [path for path in [prefix, *prefix.rglob("*")] if path.stat().st_mode & 0o044 != 0o044]
    assert closed == []
    assert (prefix / "0.1.0/bin/ctrain").stat().st_mode & 0o777 == 0o755


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that all users can enter, unlike those of pytest."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def test_a_python_that_other_users_cannot_start_is_refused(open_directory: Path, python: Path) -> None:
    """venv makes links to it, such as one in the home of who installs."""
    home = open_directory / "home"
    home.mkdir(mode=0o700)
    linking = PYTHON.replace('cp "$0" "$4/bin/python"', f'ln -s {home}/python3 "$4/bin/python"')
    python = write_program(home / "python3", linking)
    wheel = str(write_wheel(open_directory, "ctrain", "0.1.0", ""))
    argv = ["install", "--python", str(python), "--wheel", wheel, "--prefix"]
    assert main(BUILD_VERBS, [*argv, str(open_directory / "apps")]) == 70
    assert not (open_directory / "apps/0.1.0").exists()
    assert main(BUILD_VERBS, [*argv, str(home / "apps")]) == 0, "for oneself any Python will do"


def test_the_python_is_not_that_of_another_environment(
    ctrain: Install, prefix: Path, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the one from which ctrain is installed: that may be removed."""
    (tmp_path / "own/bin").mkdir(parents=True)
    (tmp_path / "own/bin/python3").symlink_to(python)
    monkeypatch.setenv("PATH", f"{tmp_path}/own/bin:{os.environ['PATH']}")
    for version, name in (("0.1.0", str(tmp_path / "own/bin/python3")), ("0.2.0", "python3")):
        ctrain("--python", name, version=version)
        assert (prefix / version / "venv/pyvenv.cfg").read_text() == f"home = {tmp_path}\n"


@pytest.mark.parametrize(
    ("path", "code", "complaint"),
    [
        ("a b", 64, "has characters that PATH or the first line of scripts cannot hold"),
        ("store", 64, "is a store of images"),
        ("file/apps", 70, "Not a directory. Choose a directory that you can write to: --prefix DIR"),
    ],
)
def test_prefixes_that_cannot_be(
    tmp_path: Path, path: str, code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "store").mkdir()
    (tmp_path / "store/ctrain-store.json").write_text('{"layout": 1}')
    wheel = str(write_wheel(tmp_path, "ctrain", "0.1.0", ""))
    assert main(BUILD_VERBS, ["install", "--prefix", str(tmp_path / path), "--wheel", wheel]) == code
    assert complaint in capsys.readouterr().err


def test_wheels(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, "ctrain", "0.2.0", "")
    assert source.from_wheel(path).requirement() == f"ctrain @ file://{path}"
    assert source.from_wheel(path).requirement("build") == f"ctrain[build] @ file://{path}"
    for name in ("torch-2.9-py3-none-any.whl", "ctrain-0.2.0.tar.gz"):
        with pytest.raises(UsageError, match="does not have the name of a wheel of ctrain"):
            source.from_wheel(tmp_path / name)
    with pytest.raises(UsageError, match="wheel not found"):
        source.from_wheel(tmp_path / "ctrain-9-py3-none-any.whl")


def noted(monkeypatch: pytest.MonkeyPatch, note: object) -> None:
    """This ctrain is 0.1.0, with pip's note on where it is from; None: there is none."""

    class Running:
        version = "0.1.0"

        def read_text(self, _name: str) -> str | None:
            return None if note is None else json.dumps(note)

    monkeypatch.setattr(source.metadata, "distribution", lambda _name: Running())


def test_without_a_wheel_it_is_what_is_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_wheel(tmp_path, "ctrain", "0.1.0", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    noted(monkeypatch, {"url": "https://host/ctrain-0.1.0-py3-none-any.whl", "archive_info": {}})
    assert source.from_running().requirement() == "ctrain @ https://host/ctrain-0.1.0-py3-none-any.whl"
    for archive in ({}, {"hashes": {"sha256": digest}}):  # uv writes none
        noted(monkeypatch, {"url": path.as_uri(), "archive_info": archive})
        assert source.from_running() == source.from_wheel(path)
    noted(monkeypatch, {"url": path.as_uri(), "archive_info": {"hashes": {"sha256": "0" * 64}}})
    with pytest.raises(UsageError, match="has changed since this ctrain was installed from it"):
        source.from_running()
    path.unlink()
    with pytest.raises(UsageError, match="wheel not found"):
        source.from_running()
    noted(monkeypatch, None)
    with pytest.raises(UsageError, match="was installed by its name, not from a wheel"):
        source.from_running()
    noted(monkeypatch, {"url": "file:///checkout", "dir_info": {"editable": True}})
    with pytest.raises(UsageError, match=r"not installed from a wheel, but from file:///checkout. Pass --wheel FILE"):
        source.from_running()


def test_one_machine_installs_at_a_time_wherever_the_prefix_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flock on Lustre may be of one machine alone: then the file itself is the lock."""
    table = tmp_path / "mounts"
    table.write_text(f"40 22 0:40 / {tmp_path} rw - lustre server:/x rw\n")
    monkeypatch.setattr(file_systems, "_TABLE", table)
    with changing(Prefix(tmp_path / "apps"), pytest.fail):
        assert (tmp_path / "apps" / _LOCK).read_text().endswith(locks._BY_FILE)
