from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.site import default_runs as module
from ctrain_runtime.site.select import load_site


def test_scratch_comes_before_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("USER", "kim")
    monkeypatch.setenv("SCRATCH", str(tmp_path / "not-there"))
    assert module.default_runs() == "~/ctrain-runs"
    (tmp_path / "scratch/kim").mkdir(parents=True)
    assert module.default_runs() == f"{tmp_path}/scratch/$USER/ctrain"
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    assert module.choose_default() == ("$SCRATCH/ctrain", "SCRATCH is set")
    site, sources = load_site("generic-slurm")
    assert (site.runs, sources["runs"]) == ("$SCRATCH/ctrain", "default")
