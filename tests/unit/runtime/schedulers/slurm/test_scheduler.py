from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ctrain_runtime.plan import sizing
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.plan.size import SizeRequest
from ctrain_runtime.schedulers import process
from ctrain_runtime.schedulers.protocol import FailedTask, Outcome, Status
from ctrain_runtime.schedulers.slurm import SCHEDULER
from samples.plans import a_plan, a_site, changed
from samples.programs import answer
from samples.recordings import install_cluster, jobs


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    plan = a_plan(run_directory=tmp_path)
    return Launch(plan, ("sbatch", "--parsable", f"{tmp_path}/job.sh"), {"job.sh": "#!/bin/bash\n"})


def test_a_job_from_its_facts_to_its_end(programs: Path, launch: Launch) -> None:
    own = jobs("24.11.5")["TIMEOUT"].replace("WorkDir=/home/alice ", f"WorkDir={launch.plan.run_directory} ")
    calls = install_cluster(programs, "24.11.5", job=own)
    site = a_site()
    cluster = SCHEDULER.facts(site)
    assert SCHEDULER.gpus(site) == ("a100",)
    assert sizing.fit(SizeRequest(gpus_per_node=2), cluster, site).size.cpus_per_rank == 1
    SCHEDULER.check(launch)
    job_id = SCHEDULER.submit(launch)
    assert SCHEDULER.name(job_id) == "job 9"
    assert SCHEDULER.find(launch.plan) is None
    assert SCHEDULER.status(job_id, launch.plan) == Status("ended", "TIMEOUT", Outcome.TIMEOUT)
    SCHEDULER.cancel(job_id, launch.plan)
    assert calls["scancel"].read_text() == "9\n"


def test_in_an_allocation_a_run_is_a_process(programs: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = dataclasses.replace(launch, plan=changed(launch.plan, allocation="41"))
    calls: list[tuple[object, ...]] = []

    def note(name: str, result: object) -> None:
        def record_call(*arguments: object) -> object:
            calls.append((name, *arguments))
            return result

        monkeypatch.setattr(process, name, record_call)

    for name in ("SLURM_GPUS_PER_TASK", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "1")
    note("start", "login01:7:9")
    note("status", Status("running"))
    note("cancel", None)
    unused = answer(programs, "sbatch")
    SCHEDULER.check(inside)
    job_id = SCHEDULER.submit(inside, pass_fds=(3,))
    assert SCHEDULER.status(job_id, inside.plan) == Status("running")
    SCHEDULER.cancel(job_id, inside.plan)
    assert SCHEDULER.find(inside.plan) is None
    assert SCHEDULER.name(job_id) == "process 7"
    run = Path(inside.plan.run_directory)
    (_, *started), *others = calls
    assert started[:2] == [inside, (3,)] and "SLURM_GPUS_PER_TASK" not in started[2] and "SLURM_JOB_ID" in started[2]
    assert others == [("status", job_id), ("cancel", job_id, run)]
    assert not unused.exists()


def test_the_task_that_a_log_names() -> None:
    expected = FailedTask(3, "gpu02", "Killed")
    assert SCHEDULER.failed_task("srun: error: gpu02: task 3: Killed\n") == expected
