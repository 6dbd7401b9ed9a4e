"""benchmarks/cold.py without its demo: what it reads of one, and what it says where it cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from samples.benchmarks import load

RECORD = """\
{"phase": "packages", "start_ms": 12, "ms": 30100}
{"phase": "environment", "start_ms": 5, "ms": 33900}
{"phase": "image", "start_ms": 34000, "ms": 201000}
"""
LAYERS = {"pytorch-cpu-slim_2.13.0-hd.horovod.json": 90, "pytorch-cpu-slim_2.13.0-hd.pytorch-cpu.json": 80}
DURATIONS = {"test imports": 4.5, "tests": 25.5}


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark on a machine without a cluster; its demo writes what a real one does."""
    module = load("cold")
    monkeypatch.setattr(module, "OWNER", tmp_path / "ifalias")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sys, "argv", ["cold.py", "--work", str(tmp_path), "--json"])
    module.commands = []

    def run(argv: Sequence[Any], **options: Any) -> None:
        module.commands.append([str(word) for word in argv])
        if argv[0] == "make":
            write_demo(options["cwd"], options["env"])

    monkeypatch.setattr(module.subprocess, "run", run)
    return module


def write_demo(clone: Path, environment: Mapping[str, str]) -> None:
    record = clone / "build/demo/phases.jsonl"
    record.parent.mkdir(parents=True)
    record.write_text(RECORD)
    cache = Path(environment["CTRAIN_CACHE"])
    for folder in ("inputs", "durations"):
        (cache / folder).mkdir(parents=True)
    for name, seconds in LAYERS.items():
        (cache / "inputs" / name).write_text(json.dumps({"size": 1, "seconds": seconds}))
    (cache / "durations/pytorch-cpu-slim_2.13.0-hd.json").write_text(json.dumps(DURATIONS))


@pytest.mark.parametrize(("seconds", "code"), [(359.0, 0), (361.0, 1)])
def test_phases_of_the_demo_and_steps_of_its_image(
    cold: ModuleType,
    seconds: float,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = iter((1000.0, 1000.0 + seconds))
    monkeypatch.setattr(cold.time, "monotonic", lambda: next(times))
    assert cold.main() == code
    out = capsys.readouterr().out.splitlines()
    result = json.loads(out[-1])
    assert result["seconds"] == seconds
    assert list(result["phases"])[:3] == ["environment", "packages", "image"]
    assert result["phases"]["image"] == 201.0
    assert {name: took for name, took in result["phases"].items() if name.startswith("image: ")} == {
        "image: layer horovod": 90.0,
        "image: layer pytorch-cpu": 80.0,
        "image: test imports": 4.5,
        "image: tests": 25.5,
    }
    assert result["starts"] == {"environment": 0.0, "packages": 0.0, "image": 34.0}
    assert any(line.split() == ["image", "34.0", "s", "201.0", "s"] for line in out)
    assert any("on a fresh machine" in line for line in out), "what this machine had already is told"
    assert list(tmp_path.iterdir()) == [], "clone and caches are removed"
    assert cold.commands[-1][1:] == ["down"]


def test_a_fresh_machine_is_told_from_one_that_has_the_packages(
    cold: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cold.shutil, "which", lambda _: None)
    assert cold.main() == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["packages_were_installed"] is False


def test_a_demo_that_fails_leaves_no_cluster(cold: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(argv: Sequence[Any], **_: Any) -> None:
        ran.append(str(argv[-1]))
        if argv[0] == "make":
            raise subprocess.CalledProcessError(2, argv)

    monkeypatch.setattr(cold.subprocess, "run", run)
    with pytest.raises(subprocess.CalledProcessError):
        cold.main()
    assert ran[1:] == ["demo", "down"]
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_earlier_runs_is_used(cold: ModuleType) -> None:
    variables = {"PATH": "/bin", "CTRAIN_CACHE": "/old", "CTRAIN_STORE": "/apps", "CTRAIN_CACHE_SIZE": "1GB"}
    assert cold.surroundings(variables, Path("/scratch")) == {
        "PATH": "/bin",
        "CTRAIN_CACHE": "/scratch/cache",
        "CTRAIN_CLUSTER_DIR": "/scratch/cluster",
        "PIP_NO_CACHE_DIR": "1",
    }


@pytest.mark.parametrize(
    ("user", "owner", "complaint"),
    [
        (1000, "", "cold.py: it must run as root, as make demo"),
        (
            0,
            "/var/lib/c",
            "cold.py: the test cluster of /var/lib/c is up. Run: CTRAIN_CLUSTER_DIR=/var/lib/c make down",
        ),
    ],
)
def test_where_it_cannot_run_it_says_so(
    cold: ModuleType,
    user: int,
    owner: str,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if owner:
        cold.OWNER.write_text(f"{owner}\n")
    assert cold.main() == cold.CANNOT_RUN
    assert capsys.readouterr().err.strip() == complaint
    assert cold.commands == []
