"""benchmarks/scale.py with a few nodes: that it really runs ctrain, and what makes it fail."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from samples.benchmarks import load

pytestmark = pytest.mark.whole_run


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))  # both are changed
    monkeypatch.setenv("PATH", os.environ["PATH"])
    module = load("scale")
    monkeypatch.setattr(module, "SECONDS_OF_STATE", 0.2)
    return module


@pytest.mark.parametrize(("limit", "code"), [(1e9, 0), (0, 1)])
def test_a_plan_a_watch_and_an_end_are_measured(
    scale: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: float, code: int
) -> None:
    monkeypatch.setattr(scale, "SECONDS_LIMIT", limit)
    monkeypatch.setattr(scale, "MEGABYTES_LIMIT", 1e9)
    monkeypatch.setattr(sys, "argv", ["scale.py", "--nodes=40", "--watched-nodes=12", "--json"])
    assert scale.main() == code
    *table, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert any("above" in line for line in table) == (code == 1)
    assert all(result["plan"][name] > 0 for name in ("seconds", "cpu_seconds", "megabytes", "kilobytes_written"))
    assert all(result["attach"][name] > 0 for name in ("seconds", "cpu_seconds", "megabytes"))
    assert len(result["watch"]) == 4
    assert all(cost["looks_per_s"] > 0 and cost["files_per_s"] > 0 for cost in result["watch"].values())


def test_a_command_that_fails_ends_it_with_its_output(scale: ModuleType, tmp_path: Path) -> None:
    scale.simulate_cluster(tmp_path, 2)
    with pytest.raises(SystemExit, match=r"(?s)submit failed with exit code \d+:.*nosuch"):
        scale.measure(tmp_path, "submit", "--site=generic-slurm", "--image=nosuch", "--", "true")


def test_ranks_must_fit_the_recorded_nodes(
    scale: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scale.py", "--ranks-per-node", "9"])
    with pytest.raises(SystemExit):
        scale.main()
    assert "ranks per node 1 to 8" in capsys.readouterr().err
