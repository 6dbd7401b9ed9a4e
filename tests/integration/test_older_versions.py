"""Commits of before, taken from the history, and this one use the same store and the same runs: docs/releases.md."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from samples import tiny
from samples.long_mode import LONG

MAIN = """
import sys, ctrain_runtime
from ctrain_builder.cli import main
assert ctrain_runtime.__file__.startswith(sys.argv[1]), ctrain_runtime.__file__
del sys.argv[1]
sys.exit(main.main())
"""
OLDER = {  # with what each says of a run of today
    "81f53561": "plan.json: unknown key 'schema'",  # 2026-11-23, before plans had one
    "501f7497": "plan.json has schema 3; this ctrain reads those up to 2",  # 2026-11-24
    "1315e8ce": "plan.json: plan: program: unknown key 'parameters'",  # 2026-11-28
}
WAITS = 'for _ in {1..3000}; do [ ! -e "$CTRAIN_RUN_DIR/go" ] || exit 5; sleep 0.1; done'
pytestmark = pytest.mark.skipif(not LONG, reason="by day test_compatibility.py has files of each schema: CTRAIN_LONG=1")


@pytest.fixture(params=OLDER)
def older(request: pytest.FixtureRequest, checkout: Path, tmp_path: Path) -> tuple[str, Path]:
    """The commit, and where its packages are."""
    archive = ["git", "archive", request.param, "runtime", "builder", "definitions", "examples", "docs"]
    done = subprocess.run(archive, cwd=checkout, capture_output=True)
    if done.returncode:
        pytest.skip(f"the history does not go back to {request.param}: {done.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        files.extractall(tmp_path / "older", filter="data")
    return request.param, tmp_path / "older"


def test_both_use_one_store_and_one_directory_of_runs(older: tuple[str, Path], checkout: Path, tmp_path: Path) -> None:
    commit, packages = older
    tiny.sif(tmp_path / "base.sif")

    def ctrain(where: Path, *arguments: str, code: int = 0) -> str:
        environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "USER": "root", "CTRAIN_SITE": "local"}
        environment |= {"CTRAIN_RUNS": str(tmp_path / "runs"), "CTRAIN_STORE": str(tmp_path / "store")}
        environment |= {"PYTHONPATH": f"{where}/runtime:{where}/builder"}
        argv = [sys.executable, "-c", MAIN, str(where), *arguments]
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    run = ("run", "--image", "tiny", "--launcher", "env")
    ctrain(checkout, "store", "init", "store")
    ctrain(checkout, "store", "adopt", "tiny:1.0-s=./base.sif", "--channel", "prod", "--yes")
    ctrain(checkout, *run, "--name", "today", "--", "true")
    assert "1.0-s-r1" in ctrain(packages, "images")
    assert "1 version whole" in ctrain(packages, "store", "verify")
    refusal = ctrain(packages, "attach", "today", code=66)
    assert OLDER[commit] in refusal and refusal.count("\n") == 1
    assert OLDER[commit] in ctrain(packages, "runs")
    ctrain(packages, *run, "--name", "before", "--", "true")
    ctrain(packages, "submit", *run[1:], "--name", "upgraded", "--", "bash", "-c", WAITS)
    assert "running" in ctrain(checkout, "status", "upgraded")
    (tmp_path / "runs/upgraded/go").touch()
    assert "code 5" in ctrain(checkout, "attach", "upgraded", code=5)
    listed = ctrain(checkout, "runs")
    states = {name: state for name, state, *_ in map(str.split, listed.splitlines()[1:])}
    assert states == {"before": "completed", "today": "completed", "upgraded": "failed"}, listed
    ctrain(packages, "store", "promote", "tiny", "1.0-s-r1", "dev")
    assert "dev" in ctrain(checkout, "store", "log").splitlines()[-1]
    assert "dev,prod" in ctrain(checkout, "images")
    assert "1 version whole" in ctrain(checkout, "store", "verify")
