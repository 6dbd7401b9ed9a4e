from __future__ import annotations

from pathlib import Path

from ctrain_runtime.run.profiles import MISSING, note
from samples.runs import StandIn, submitted


def test_the_line_at_the_end_of_a_run(tmp_path: Path) -> None:
    assert note(submitted(tmp_path / "plain", StandIn()).plan) == ""
    run = submitted(tmp_path / "one", StandIn(), profile="torch")
    assert note(run.plan) == MISSING
    (run.path / "profiles").mkdir()
    (run.path / "profiles/rank0.trace.json.gz").touch()  # cut off before the summary
    assert note(run.plan) == MISSING
    (run.path / "profiles/rank0.nsys-rep").touch()
    assert note(run.plan) == f"profiles: {run.path}/profiles; open them in Nsight Systems, or see: ctrain report one"
    (run.path / "profiles/rank0.nsys-rep").unlink()
    (run.path / "profiles/rank0.txt").touch()
    assert note(run.plan) == f"profiles: {run.path}/profiles; what took longest: ctrain report one"
