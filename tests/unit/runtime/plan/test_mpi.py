from __future__ import annotations

import pytest

from ctrain_runtime.plan import mpi
from samples.plans import LOCAL, a_job, a_plan, an_image


@pytest.mark.parametrize("launcher", ["env", "torchrun"])
def test_launchers_that_start_no_mpi(launcher: str) -> None:
    assert mpi.environment(launcher, "", gpus=False) == {}


@pytest.mark.parametrize(("launcher", "stopped"), [("env", True), ("torchrun", True), ("gloo", False), ("mpi", False)])
def test_horovod_does_not_run_worlds_of_one(launcher: str, stopped: bool) -> None:
    assert ("HOROVOD_CONTROLLER" in mpi.environment(launcher, "", gpus=False, horovod=True)) is stopped
    image = an_image(software={"horovod": "0.28.1"})
    ranks = a_plan(job=a_job(launcher=launcher), image=image, nodes=2)
    alone = a_plan(job=a_job(launcher=launcher), image=image, nodes=1, ranks_per_node=1)
    assert (ranks.environment.variables.get("HOROVOD_CONTROLLER") == "none") is stopped
    assert "HOROVOD_CONTROLLER" not in alone.environment.variables


@pytest.mark.parametrize(("launcher", "flavour"), [("mpi", "pmix"), ("mpi", "pmi2"), ("mpirun", "")])
def test_no_process_reads_the_memory_of_another_user_namespace(launcher: str, flavour: str) -> None:
    """In Open MPI 4 and 5, in MPICH and in UCX, whichever of them the image has."""
    variables = mpi.environment(launcher, flavour, gpus=True)
    assert variables["OMPI_MCA_btl_vader_single_copy_mechanism"] == "none"
    assert (variables["OMPI_MCA_smsc"], variables["UCX_TLS"]) == ("^cma", "^cma")
    assert (variables["MPIR_CVAR_CH4_CMA_ENABLE"], variables["UCX_POSIX_USE_PROC_LINK"]) == ("0", "n")


@pytest.mark.parametrize(
    ("flavour", "expected"), [("pmix", True), ("pmix_v4", True), ("pmi2", False), ("cray_shasta", False)]
)
def test_what_pmix_negotiates_is_fixed(flavour: str, expected: bool) -> None:
    variables = mpi.environment("mpi", flavour, gpus=True)
    assert (variables.get("PMIX_MCA_gds") == "hash") is expected
    assert (variables.get("PMIX_MCA_psec") == "native") is expected


def test_ranks_that_wait_yield_their_cores_only_without_gpus() -> None:
    name = "OMPI_MCA_mpi_yield_when_idle"
    assert mpi.environment("mpi", "pmix", gpus=False)[name] == "1"
    assert name not in mpi.environment("mpi", "pmix", gpus=True)


@pytest.mark.parametrize(
    ("software", "yields"),
    [({"cuda": "12.6"}, False), ({"rocm": "6.4.2"}, False), ({"xpu": "20250302"}, False), ({"torch": "2.13.0"}, True)],
)
def test_gpus_of_every_maker_are_gpus(software: dict[str, str], yields: bool) -> None:
    """Ranks on AMD's and Intel's yielded their cores as those of CPUs do."""
    plan = a_plan(image=an_image(software=software), nodes=2)
    assert ("OMPI_MCA_mpi_yield_when_idle" in plan.environment.variables) is yields


def test_mpirun_accepts_root_and_more_ranks_than_cores() -> None:
    assert mpi.environment("mpirun", "", gpus=True).items() >= mpi.MPIRUN.items()
    assert not mpi.MPIRUN.items() & mpi.environment("mpi", "pmix", gpus=True).items()


@pytest.mark.parametrize(
    ("launcher", "software", "disabled"),
    [
        ("mpi", {"horovod": "0.28.1", "hpcx": "2.16rc4"}, True),
        ("mpi", {"horovod": "0.28.1"}, False),
        ("mpi", {"hpcx": "2.16rc4"}, False),  # mpi4py may have use for them
        ("gloo", {"horovod": "0.28.1", "hpcx": "2.16rc4"}, False),
        ("env", {"horovod": "0.28.1", "hpcx": "2.16rc4"}, False),
        ("torchrun", {"horovod": "0.28.1", "hpcx": "2.16rc4"}, False),
    ],
)
def test_horovod_does_not_use_the_collectives_of_hpcx(launcher: str, software: dict[str, str], disabled: bool) -> None:
    """They fail with MPI_THREAD_MULTIPLE."""
    names = ("OMPI_MCA_coll_hcoll_enable", "OMPI_MCA_coll_ucc_enable")
    image = an_image(software={"mpi": "Open MPI 4.1.5rc2", **software})
    plan = a_plan(job=a_job(launcher=launcher), image=image, nodes=2)
    assert [plan.environment.variables.get(name) for name in names] == ["0" if disabled else None] * 2
    if launcher == "mpi":
        alone = a_plan(**LOCAL, image=image, nodes=1, ranks_per_node=2)
        assert (alone.program.launcher, alone.environment.variables.get(names[0])) == (
            "mpirun",
            "0" if disabled else None,
        )


def test_a_value_of_ones_own_for_hpcx_wins() -> None:
    image = an_image(software={"mpi": "Open MPI 4.1.5rc2", "horovod": "0.28.1", "hpcx": "2.16rc4"})
    plan = a_plan(image=image, nodes=2, env={"OMPI_MCA_coll_ucc_enable": "1"})
    assert plan.environment.variables["OMPI_MCA_coll_ucc_enable"] == "1"
    assert plan.environment.origins["OMPI_MCA_coll_ucc_enable"] == "option"
