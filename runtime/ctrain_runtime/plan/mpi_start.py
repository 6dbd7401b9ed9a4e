"""Chooses what starts MPI ranks: the scheduler's plugin that the image's MPI knows, or the image's mpirun. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.site.model import Site

FITS, MAY_FIT, ALONE = "fits", "may fit", "each rank alone"
# Slurm's plugins without PMIx: PMI-2, Cray's PMI-2, PMI-1 (`openmpi`), nothing. Under PMI-2, and where srun got no
# option, Open MPI 5.0.3 made N worlds of one rank (open-mpi/ompi#13523); the others are inferred: it has PMIx only.
_WITHOUT_PMIX = ("pmi2", "cray_shasta", "openmpi", "none")
# mpiexec of PALS and of Hydra speaks MPICH's PMI: no Open MPI in an image does ("libmpi.so.40 not found: use
# MPICH-compatible base images", ALCF's documentation of containers).
_OF_MPICH = ("pals", "hydra")
OTHERWISE = (
    "Pass --launcher gloo for Horovod, env or torchrun if the program needs no MPI; or ask the administrators for PMIx"
)

OF_MPICH = (
    "Use an image whose mpi4py or Horovod was compiled for MPICH; or pass --launcher gloo for Horovod, env or torchrun"
    " if the program needs no MPI"
)


def fit(plugin: str, software: Mapping[str, str]) -> str:
    """Whether the image's MPI knows how `plugin` starts its ranks: FITS, MAY_FIT, or ALONE if each would be a world.

    Open MPI knows PMIx since 2.0, and PMI-2 only if it was built for it, since 5 never (its documentation, "Launching
    with Slurm"); MPICH and its kin the reverse. What the image has may be unknown: then nothing speaks against it.
    """
    mpi = software.get("mpi", "")
    open_mpi = re.match(r"Open MPI v?(\d+)", mpi)
    if open_mpi and (plugin in _OF_MPICH or (int(open_mpi[1]) >= 5 and plugin in _WITHOUT_PMIX)):
        return ALONE
    if "pmix" in plugin:
        return FITS if open_mpi or "pmix" in software or not mpi else MAY_FIT
    return MAY_FIT if open_mpi else FITS


def start_mpi(site: Site, cluster: Cluster, nodes: int, software: Mapping[str, str]) -> tuple[str, str]:
    """The launcher of MPI ranks, and the scheduler's plugin for them: the first of the site's choices that it has, and
    under which the ranks of the image's MPI find each other.

    Without one, the image's mpirun starts them ("mpirun", ""), on one host. Raises SchedulerError if there are several.
    """
    offered = [plugin for plugin in site.mpi if plugin in cluster.mpi]
    for plugin in offered:
        if fit(plugin, software) != ALONE:
            return "mpi", plugin
    if nodes == 1 or not cluster.partitions:
        return "mpirun", ""
    available = f"(available: {', '.join(cluster.mpi) or 'none'})"
    if offered:
        mpi, names = software["mpi"], " and ".join(offered)
        problem = (
            f"{mpi} of the image needs PMIx: under {site.scheduler}'s {names} each rank would be alone {available}"
        )
        raise SchedulerError(problem, OF_MPICH if set(offered) <= set(_OF_MPICH) else OTHERWISE)
    raise SchedulerError(f"{site.scheduler} has no MPI plugin {' or '.join(site.mpi)} {available}", OTHERWISE)


def choose_task_starter(site: Site) -> str:
    """What starts tasks that are no ranks of MPI, where the scheduler has a choice; "" is its own way."""
    return "pals" if {"pals", "pals-pmix"} & set(site.mpi) else ""
