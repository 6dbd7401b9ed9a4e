from __future__ import annotations

import pytest

from ctrain_runtime.plan import mpi
from samples.plans import a_job, a_plan, an_image


@pytest.mark.parametrize("launcher", ["env", "torchrun"])
def test_launchers_that_start_no_mpi(launcher: str) -> None:
    assert mpi.environment(launcher, "", cuda=False) == {}


@pytest.mark.parametrize(("launcher", "stopped"), [("env", True), ("torchrun", True), ("gloo", False), ("mpi", False)])
def test_horovod_does_not_run_worlds_of_one(launcher: str, stopped: bool) -> None:
    assert ("HOROVOD_CONTROLLER" in mpi.environment(launcher, "", cuda=False, horovod=True)) is stopped
    image = an_image(software={"horovod": "0.28.1"})
    ranks = a_plan(job=a_job(launcher=launcher), image=image, nodes=2)
    alone = a_plan(job=a_job(launcher=launcher), image=image, nodes=1, ranks_per_node=1)
    assert (ranks.environment.get("HOROVOD_CONTROLLER") == "none") is stopped
    assert "HOROVOD_CONTROLLER" not in alone.environment


@pytest.mark.parametrize(("launcher", "flavour"), [("mpi", "pmix"), ("mpi", "pmi2"), ("mpirun", "")])
def test_no_process_reads_the_memory_of_another_user_namespace(launcher: str, flavour: str) -> None:
    """In Open MPI 4 and 5, in MPICH and in UCX, whichever of them the image has."""
    variables = mpi.environment(launcher, flavour, cuda=True)
    assert variables["OMPI_MCA_btl_vader_single_copy_mechanism"] == "none"
    assert (variables["OMPI_MCA_smsc"], variables["UCX_TLS"]) == ("^cma", "^cma")
    assert (variables["MPIR_CVAR_CH4_CMA_ENABLE"], variables["UCX_POSIX_USE_PROC_LINK"]) == ("0", "n")


@pytest.mark.parametrize(
    ("flavour", "expected"), [("pmix", True), ("pmix_v4", True), ("pmi2", False), ("cray_shasta", False)]
)
def test_what_pmix_negotiates_is_fixed(flavour: str, expected: bool) -> None:
    variables = mpi.environment("mpi", flavour, cuda=True)
    assert (variables.get("PMIX_MCA_gds") == "hash") is expected
    assert (variables.get("PMIX_MCA_psec") == "native") is expected


def test_ranks_that_wait_yield_their_cores_only_without_gpus() -> None:
    name = "OMPI_MCA_mpi_yield_when_idle"
    assert mpi.environment("mpi", "pmix", cuda=False)[name] == "1"
    assert name not in mpi.environment("mpi", "pmix", cuda=True)


def test_mpirun_accepts_root_and_more_ranks_than_cores() -> None:
    assert mpi.environment("mpirun", "", cuda=True).items() >= mpi.MPIRUN.items()
    assert not mpi.MPIRUN.items() & mpi.environment("mpi", "pmix", cuda=True).items()
