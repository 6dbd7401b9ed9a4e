from __future__ import annotations

import pytest

from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.plan.mpi_start import start_mpi
from ctrain_runtime.site.select import load_site
from samples.plans import CLUSTER, GPU_PARTITION, a_job, a_plan, a_site, an_image, some_facts

NO_PMI = Cluster((GPU_PARTITION,), ("none", "cray_shasta"))
ONLY_PMI2 = Cluster((GPU_PARTITION,), ("none", "pmi2"))
LOCAL = Cluster()
OPEN_MPI_4 = {"mpi": "Open MPI 4.1.7rc1"}
OPEN_MPI_5 = {"mpi": "Open MPI 5.0.10"}
MPICH = {"mpi": "HYDRA 5.0.2"}
REMEDY = (
    "Pass --launcher gloo for Horovod, env or torchrun if the program needs no MPI; or ask the administrators for PMIx"
)


@pytest.mark.parametrize(
    ("site_mpi", "cluster", "nodes", "software", "started"),
    [
        (("pmix", "pmi2"), CLUSTER, 2, OPEN_MPI_4, ("mpi", "pmix")),
        (("pmix", "pmi2"), LOCAL, 2, OPEN_MPI_4, ("mpirun", "")),
        (("pmix", "pmi2"), Cluster((GPU_PARTITION,)), 1, OPEN_MPI_4, ("mpirun", "")),
        (("pmix", "pmi2"), NO_PMI, 1, OPEN_MPI_4, ("mpirun", "")),
        (("pmix", "pmi2"), ONLY_PMI2, 2, OPEN_MPI_4, ("mpi", "pmi2")),
        (("pmix", "pmi2"), ONLY_PMI2, 2, MPICH, ("mpi", "pmi2")),
        (("pmix", "pmi2"), ONLY_PMI2, 2, {}, ("mpi", "pmi2")),  # unknown: the preflight counts the ranks
        (("pmi2", "pmix_v4"), CLUSTER, 2, OPEN_MPI_5, ("mpi", "pmix_v4")),
        (("none", "cray_shasta", "openmpi", "pmix"), CLUSTER, 2, OPEN_MPI_5, ("mpi", "pmix")),
        (("pmi2", "pmix_v4"), CLUSTER, 2, OPEN_MPI_4, ("mpi", "pmi2")),
        (("pmix", "pmi2"), ONLY_PMI2, 1, OPEN_MPI_5, ("mpirun", "")),
    ],
)
def test_how_mpi_starts(
    site_mpi: tuple[str, ...], cluster: Cluster, nodes: int, software: dict[str, str], started: tuple[str, str]
) -> None:
    assert start_mpi(a_site(mpi=site_mpi), cluster, nodes, software) == started


def test_a_scheduler_that_cannot_start_mpi_on_several_nodes() -> None:
    with pytest.raises(SchedulerError) as caught:
        start_mpi(a_site(), NO_PMI, 2, OPEN_MPI_4)
    assert str(caught.value) == f"slurm has no MPI plugin pmix or pmi2 (available: none, cray_shasta). {REMEDY}"


def test_ranks_of_open_mpi_5_are_never_started_by_pmi2() -> None:
    """Each would be alone, and only a line on standard error would tell."""
    with pytest.raises(SchedulerError) as caught:
        a_plan(facts=some_facts(cluster=ONLY_PMI2), image=an_image(software=OPEN_MPI_5), nodes=2)
    assert str(caught.value) == (
        "Open MPI 5.0.10 of the image needs PMIx: under slurm's pmi2 each rank would be alone (available: none, pmi2)."
        f" {REMEDY}"
    )
    for launcher in ("env", "torchrun", "gloo", "node"):
        plan = a_plan(
            job=a_job(launcher=launcher),
            facts=some_facts(cluster=ONLY_PMI2),
            image=an_image(software=OPEN_MPI_5),
            nodes=2,
        )
        assert (plan.program.launcher, plan.program.mpi) == (launcher, "")


def test_perlmutter_has_pmi2_alone() -> None:
    site, _ = load_site("perlmutter")
    assert start_mpi(site, ONLY_PMI2, 2, OPEN_MPI_4) == ("mpi", "pmi2")
    with pytest.raises(SchedulerError, match=r"Open MPI 5\.0\.10 of the image needs PMIx"):
        start_mpi(site, ONLY_PMI2, 2, OPEN_MPI_5)


@pytest.mark.parametrize("plugin", ["hydra", "pals"])
def test_under_mpichs_mpiexec_an_image_with_open_mpi_is_told_what_it_lacks(plugin: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        start_mpi(a_site(mpi=(plugin,)), Cluster(CLUSTER.partitions, (plugin,)), 2, OPEN_MPI_4)
    assert "Use an image whose mpi4py or Horovod was compiled for MPICH; or pass --launcher gloo" in str(caught.value)
