from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.plan.model import Launch
from ctrain_runtime.plan.size import SizeRequest
from ctrain_runtime.schedulers import process
from ctrain_runtime.schedulers.protocol import FailedTask, Outcome, Status
from ctrain_runtime.schedulers.slurm import SCHEDULER
from samples.plans import a_plan, a_site
from samples.programs import answer
from samples.recordings import install_cluster, jobs


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    plan = a_plan(run_directory=tmp_path)
    return Launch(plan, ("sbatch", "--parsable", f"{tmp_path}/job.sh"), {"job.sh": "#!/bin/bash\n"})


def test_a_job_from_its_facts_to_its_end(programs: Path, launch: Launch) -> None:
    calls = install_cluster(programs, "24.11.5", job=jobs("24.11.5")["TIMEOUT"])
    site = a_site()
    cluster = SCHEDULER.facts(site)
    assert SCHEDULER.gpus(site) == ("a100",)
    assert SCHEDULER.size(SizeRequest(gpus_per_node=2), cluster, site).cpus_per_rank == 1
    SCHEDULER.check(launch, Path(launch.plan.run_directory))
    job_id = SCHEDULER.submit(launch)
    assert SCHEDULER.name(job_id) == "job 9"
    assert SCHEDULER.find(launch.plan) is None
    assert SCHEDULER.status(job_id, launch.plan) == Status("ended", "TIMEOUT", Outcome.TIMEOUT)
    SCHEDULER.cancel(job_id, launch.plan)
    assert calls["scancel"].read_text() == "9\n"


def test_in_an_allocation_a_run_is_a_process(programs: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = dataclasses.replace(launch, plan=dataclasses.replace(launch.plan, allocation="41"))
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(process, "start", lambda *given: calls.append(given) or "login01:7:9")
    monkeypatch.setattr(process, "status", lambda *given: calls.append(given) or Status("running"))
    monkeypatch.setattr(process, "cancel", lambda *given: calls.append(given))
    unused = answer(programs, "sbatch")
    SCHEDULER.check(inside, Path(inside.plan.run_directory))
    job_id = SCHEDULER.submit(inside, pass_fds=(3,))
    assert SCHEDULER.status(job_id, inside.plan) == Status("running")
    SCHEDULER.cancel(job_id, inside.plan)
    assert SCHEDULER.find(inside.plan) is None
    assert SCHEDULER.name(job_id) == "process 7"
    assert [call[0] for call in calls] == [inside, job_id, job_id]
    assert not unused.exists()


def test_the_task_that_a_log_names() -> None:
    expected = FailedTask(3, "gpu02", "Killed")
    assert SCHEDULER.failed_task("srun: error: gpu02: task 3: Killed\n") == expected
