"""ctrain install with the real venv and pip, without an index: the wheels are made here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime.cli.main import main
from samples.wheels import repack, write_tree_wheel

NEEDED = ("pyyaml", "requests", "certifi", "charset-normalizer", "idna", "urllib3")

pytestmark = pytest.mark.whole_run


@pytest.fixture(scope="module")
def prefix(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Version 0.1.0, installed by somebody with a umask of 077."""
    place = tmp_path_factory.mktemp("place")
    wheel = write_tree_wheel(checkout, place / "wheels", "0.1.0")
    for name in NEEDED:
        repack(place / "wheels", name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(place / "wheels"))
        before = os.umask(0o077)
        try:
            assert main(BUILD_VERBS, ["install", "--prefix", str(place / "apps"), "--wheel", str(wheel)]) == 0
        finally:
            os.umask(before)
    yield place / "apps"


def ctrain(prefix: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The current version, in an environment of nothing else."""
    environment = {"PATH": os.defpath, "HOME": str(prefix.parent), **variables}
    return subprocess.run([prefix / "current/bin/ctrain", *argv], env=environment, capture_output=True, text=True)


def test_it_runs_whatever_python_its_user_has_set(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "ctrain_runtime.py").write_text("raise SystemExit('the wrong one')\n")
    done = ctrain(prefix, "--version", PYTHONPATH=str(tmp_path), PYTHONHOME="/nowhere")
    assert (done.stdout.splitlines()[0], done.stderr) == ("ctrain 0.1.0", "")


def test_all_users_can_read_all_of_it(prefix: Path) -> None:
    closed = [path for path in [prefix, *prefix.rglob("*")] if not path.stat().st_mode & 0o004]
    assert closed == []
    assert list(prefix.glob("0.1.0/venv/lib/python3*/site-packages/ctrain_runtime/__pycache__/*.pyc")), "users cannot"


def test_it_finds_its_sites_and_its_store(prefix: Path) -> None:
    (prefix / "sites/ours.yaml").write_text("scheduler: local\ncomment: of all users\n")
    said = ctrain(prefix, "site", "show", "ours", "--why").stdout
    rows = [" ".join(line.split()) for line in said.splitlines()]
    assert f'stores ["{prefix}/store"] {prefix} (installation)' in rows
    assert f"comment of all users {prefix}/sites/ours.yaml (installation)" in rows
    assert f"store {prefix}/store  warn  0 images; writable by" in ctrain(prefix, "doctor").stdout


def test_the_files_for_completion_are_those_of_ctrain_completion(prefix: Path) -> None:
    for shell, name in (("bash", "bash-completion/completions/ctrain"), ("zsh", "zsh/site-functions/_ctrain")):
        assert (prefix / "current/share" / name).read_text() == ctrain(prefix, "completion", shell).stdout
