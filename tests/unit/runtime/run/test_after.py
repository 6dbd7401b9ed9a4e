from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.cluster.model import Allocation, Cluster
from ctrain_runtime.errors import CtrainError, ResourceError, SchedulerError
from ctrain_runtime.run import record
from ctrain_runtime.run.after import job_to_wait_for
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.record import Exit
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Status
from ctrain_runtime.site.model import Site
from samples.plans import LOCAL, a_site
from samples.run_requests import asked, make_machine, plan_of
from samples.runs import StandIn, submitted

HERE = Cluster()
SLURM, LOCALLY = schedulers.get("slurm"), schedulers.get("local")


@pytest.fixture
def scheduler() -> StandIn:
    return StandIn()


@pytest.fixture
def run(tmp_path: Path, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose job waits or runs as number 7."""
    run = submitted(tmp_path / "ctrain-runs/first", scheduler)
    monkeypatch.setattr(schedulers, "get", lambda name: {"slurm": scheduler, "local": LOCALLY}[name])
    return run


def wait_for(run: Run, site: Site, scheduler: object, cluster: Cluster = HERE) -> tuple[str, str]:
    return job_to_wait_for(run.path, site, scheduler, cluster)  # type: ignore[arg-type]  # a stand-in


def end(run: Run, code: int) -> None:
    ended = Exit(code, "completed" if code == 0 else "rank 0 failed", "program", Ending.COMPLETED)
    record.save(dataclasses.replace(run.record, exit=ended))


def test_a_job_of_the_same_queue(run: Run) -> None:
    note = "starts once run first (job 7) has ended with exit code 0"
    assert wait_for(run, a_site(), SLURM) == ("7", note)
    other = dataclasses.replace(HERE, name="other")
    assert wait_for(run, a_site(), SLURM, other) == ("7", note)  # an older plan names no cluster


def test_a_run_that_has_ended(run: Run) -> None:
    end(run, 0)
    assert wait_for(run, a_site(), SLURM) == ("", "run first has completed: --after waits for nothing")
    assert wait_for(run, LOCAL["site"], LOCALLY)[0] == ""
    end(run, 3)
    with pytest.raises(ResourceError, match=r"^run first has not completed, but ended: rank 0 failed\. Leave out"):
        wait_for(run, a_site(), SLURM)


@pytest.mark.parametrize(
    ("site", "cluster", "complaint"),
    [
        (LOCAL["site"], HERE, "runs of site local start at once: --after needs a queue"),
        (
            a_site(),
            Cluster(allocation=Allocation("9", 1, "gpu", 8, 0)),
            "inside an allocation runs start at once: --after needs a",
        ),
        (a_site(name="other", scheduler="pbs"), HERE, "job 7 of run first is not in the queue of site other"),
    ],
)
def test_where_no_queue_can_wait(run: Run, site: Site, cluster: Cluster, complaint: str) -> None:
    by = LOCALLY if site.scheduler == "local" else SLURM
    with pytest.raises(
        SchedulerError, match=f"^{complaint}.* Run: ctrain wait {re.escape(str(run.path))} && ctrain run"
    ):
        wait_for(run, site, by, cluster)


def test_what_nobody_knows_is_not_waited_for(run: Run, scheduler: StandIn) -> None:
    scheduler.statuses = [Status("unknown", note="its job belongs to cluster other")]
    with pytest.raises(CtrainError, match="its job belongs to cluster other"):
        wait_for(run, a_site(), SLURM)


def test_the_plan_has_the_job(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_machine(programs, tmp_path)
    run = submitted(tmp_path / "ctrain-runs/first", StandIn())
    monkeypatch.setattr("ctrain_runtime.schedulers.slurm.job.read_status", lambda *_: Status("waiting"))
    plan = plan_of(after="first")
    assert (plan.placement.after, run.job_id) == ("7", "7")
    assert asked(after="first").options.after == "first"
