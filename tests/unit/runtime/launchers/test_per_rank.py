from __future__ import annotations

import pytest

from ctrain_runtime import payload
from ctrain_runtime.base.bash import fragment
from ctrain_runtime.launchers import make_task
from ctrain_runtime.plan.task import TaskIdentity
from samples.plans import a_job, a_plan
from samples.scripts import Scripts, slurm_task

OPEN_MPI = "echo ${OMPI_COMM_WORLD_RANK-none}/${OMPI_COMM_WORLD_SIZE-none}"
LOCAL_OPEN_MPI = "echo ${OMPI_COMM_WORLD_LOCAL_RANK-none}/${OMPI_COMM_WORLD_LOCAL_SIZE-none}"


def test_mpi_programs_find_the_variables_of_mpirun(scripts: Scripts) -> None:
    plan = scripts.plan("sh", "-c", f"{OPEN_MPI}; {LOCAL_OPEN_MPI}", launcher="mpi", nodes=2, ranks_per_node=2)
    assert scripts.execute(plan, PMIX_RANK="3", **slurm_task(rank=3, size=4, per_node=2)) == 0
    assert scripts.log(3) == "3/4\n1/2\n"


def test_other_programs_do_not(scripts: Scripts) -> None:
    """Not even when ctrain itself was started by an mpirun."""
    plan = scripts.plan("sh", "-c", f"{OPEN_MPI}; {LOCAL_OPEN_MPI}")
    assert scripts.execute(plan, OMPI_COMM_WORLD_RANK="5", OMPI_COMM_WORLD_SIZE="6", **slurm_task()) == 0
    assert scripts.log() == "none/none\nnone/none\n"


def test_a_rank_without_pmix_stops(scripts: Scripts) -> None:
    assert scripts.execute(scripts.plan("true", launcher="mpi"), **slurm_task()) == 72
    assert scripts.log() == "ctrain: srun started this rank without PMIx: MPI would run with world size 1\n"
    assert scripts.node_events()[0]["what"] == "refused"


def test_the_sockets_of_pmix_are_mounted(scripts: Scripts) -> None:
    engine = scripts.bin / "apptainer"
    engine.write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
    plan = scripts.plan("true", launcher="mpi")
    assert scripts.execute(plan, PMIX_RANK="0", PMIX_SERVER_TMPDIR="/run/pmix 7", **slurm_task()) == 0
    assert "--bind\n/run/pmix 7\n" in scripts.log()


def test_a_task_that_srun_did_not_number_stops(scripts: Scripts) -> None:
    assert scripts.execute(scripts.plan("true")) != 0
    assert "SLURM_PROCID" in scripts.job_log()
    assert all(path.read_text() == "" for path in (scripts.run / "nodes").iterdir())


@pytest.mark.parametrize("launcher", ["mpi", "env", "gloo"])
def test_what_runs_per_rank_is_a_shell(launcher: str) -> None:
    """No Python of ctrain's, which 8 ranks of 10,000 nodes would read from a shared file system at once: only the first
    rank of gloo starts a server by it, and the first one of each node the scan and the watch. What looks for
    programs knows Python's name, and starts nothing."""
    plan, identity = a_plan(job=a_job(launcher=launcher, command=("/bin/true",))), TaskIdentity("srun", "")
    assert "python" not in make_task(plan, identity).scripts["task.sh"]
    parts = {path.stem: fragment(path) for path in (payload.FOLDER / "bash").glob("*.bash")}
    assert {name for name, text in parts.items() if "python" in text} == {
        "gloo",
        "hangs",
        "programs",
        "world",
        "staging",
    }


def test_launchers_are_chosen_by_the_plan() -> None:
    tasks = {
        launcher: make_task(a_plan(job=a_job(launcher=launcher)), TaskIdentity("srun", ""))
        for launcher in ("mpi", "env", "torchrun")
    }
    names = {launcher: {*task.scripts, *task.files} for launcher, task in tasks.items()}
    one = {
        "task.sh",
        "ctrain.bash",
        "inside.sh",
        "scan.py",
        "watch.py",
        "judge.py",
        "stacks.py",
        "python/ctrain_program.py",
    }
    assert names == {"mpi": one, "env": one, "torchrun": one | {"rank.sh"}}
