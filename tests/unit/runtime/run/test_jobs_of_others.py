"""Runs with the commands of Slurm, from their records to what is called: what is not a run's own is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.errors import UnansweredSubmission
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.run import record
from ctrain_runtime.run.pick_up import pick_up, refresh
from ctrain_runtime.run.submit import submit
from ctrain_runtime.schedulers import submission
from ctrain_runtime.schedulers.slurm import SCHEDULER
from ctrain_runtime.schedulers.slurm import submit as slurm_submit
from samples.plans import a_launch, a_plan, some_facts
from samples.programs import answer, write_program
from samples.recordings import jobs
from samples.runs import submitted


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    (tmp_path / "in-use").mkdir()
    return a_launch(a_plan(run_directory=tmp_path / "one", facts=some_facts(lease_dir=str(tmp_path / "in-use"))))


@pytest.mark.parametrize("name", ["FAILED-3", "RUNNING", "CANCELLED"])
def test_a_look_from_another_cluster_changes_nothing(programs: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "in-use").mkdir()
    answer(programs, "scontrol", jobs("24.11.5")[name])
    cancelled = answer(programs, "scancel")
    run = submitted(tmp_path / "one", SCHEDULER, facts=some_facts(lease_dir=str(tmp_path / "in-use")))
    Path(run.plan.image.lease).touch()
    status, conclusion = refresh(pick_up(run.path))
    assert (status.phase, conclusion) == ("unknown", None)
    assert record.load(run.path).exit is None
    assert Path(run.plan.image.lease).exists()
    assert not cancelled.exists()


def test_a_submission_that_times_out_is_looked_up_later(
    programs: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(slurm_submit, "check", lambda _: None)
    write_program(programs / "sbatch", "#!/bin/bash\nexec /bin/sleep 60\n")
    answer(programs, "squeue")
    path = Path(launch.plan.run_directory)
    with pytest.raises(UnansweredSubmission, match="sbatch timed out"):
        submit(launch)
    assert record.load(path).exit is None
    assert Path(launch.plan.image.lease).exists()
    answer(programs, "squeue", f"41|{path}\n")
    assert pick_up(path).job_id == "41"
