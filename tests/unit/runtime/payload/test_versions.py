from __future__ import annotations

import pytest

from ctrain_runtime.payload.versions import hpcx_version, library_name, mpi_name, mpi_of_programs


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n", "Open MPI 4.1.4"),
        ("mpirun.real (OpenRTE) 2.1.1\n", "OpenRTE 2.1.1"),
        (
            "HYDRA build details:\n    Version:                                 5.0.2\n    Release Date:  Fri\n",
            "HYDRA 5.0.2",
        ),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240701 (id: 17)\nCopyright\n",
            "Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240701 (id: 17)",
        ),
        ("", ""),
    ],
)
def test_the_name_of_an_mpi(said: str, name: str) -> None:
    assert mpi_name(said) == name


@pytest.mark.parametrize(
    ("variable", "mpirun", "version"),
    [
        ("2.16rc4", "/opt/hpcx/ompi/bin/orterun", "2.16rc4"),
        ("", "/opt/hpcx-v2.20/ompi/bin/orterun", "unknown"),
        ("2.50", "/usr/local/mpi/bin/prterun", "2.50"),
        ("2.50", "/usr/bin/orterun", ""),  # another MPI was installed, and comes first
        ("", "/usr/bin/orterun", ""),
    ],
)
def test_hpcx(variable: str, mpirun: str, version: str) -> None:
    assert hpcx_version({"HPCX_VERSION": variable} if variable else {}, mpirun) == version


OPEN_MPI = (
    "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11, repo rev: v5.0.11rc1, Sep 16"
)
MPICH = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25 20:45:26 UTC 2026\n"


@pytest.mark.parametrize(
    ("mpirun", "loaded", "name"),
    [
        ("Open MPI 4.1.4", OPEN_MPI, "Open MPI 4.1.4"),  # one MPI: by its mpirun
        ("HYDRA 5.0.2", MPICH, "HYDRA 5.0.2"),
        ("HYDRA 5.0.2", OPEN_MPI, "Open MPI 5.0.11"),  # pip install mpich over Open MPI
        ("Open MPI 4.1.4", MPICH, "MPICH 5.0.2"),
        ("HYDRA 5.0.2", "", "HYDRA 5.0.2"),  # no mpi4py, or one that does not start
        ("Open MPI 4.1.4", "Intel(R) MPI Library 2021.13 for Linux* OS\n", "Open MPI 4.1.4"),
    ],
)
def test_of_two_mpis_that_counts_which_programs_load(mpirun: str, loaded: str, name: str) -> None:
    assert mpi_of_programs(mpirun, library_name(loaded)) == name
