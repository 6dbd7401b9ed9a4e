"""MPI settings for ranks in containers, each in a user namespace of its own."""

from __future__ import annotations

# A process of one user namespace cannot read another's memory (cross memory attach), so the shared-memory transports
# must copy through a buffer: `vader` in Open MPI 4, `smsc` in 5, MPICH's own, and UCX, which all may use (Apptainer's
# documentation, "MPI"; Open MPI's, "Shared memory single copy"; MPICH's, "CVAR"). Nor can it open another's files in
# /proc, by which UCX shares memory; names in /dev/shm it can (`ucx_info -c -f`, UCX_POSIX_USE_PROC_LINK).
SHARED_MEMORY = {
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_smsc": "^cma",
    "MPIR_CVAR_CH4_CMA_ENABLE": "0",
    "UCX_TLS": "^cma",
    "UCX_POSIX_USE_PROC_LINK": "n",
}
# The image's PMIx is seldom that of the cluster. Of what both sides negotiate, these two are in every version: data
# stored by hashing instead of shared memory whose layout differs, and security by the kernel's word for the peer
# instead of munge's socket, which is not in the container (Slurm's MPI guide; PMIx's release notes of 4.2.4).
PMIX = {"PMIX_MCA_gds": "hash", "PMIX_MCA_psec": "native"}
# On CPUs the cores that compute are those on which a waiting MPI would spin: 84 images/s instead of 26 were measured.
CPU = {"OMPI_MCA_mpi_yield_when_idle": "1"}
# Open MPI's mpirun refuses root and more ranks than cores unless told otherwise (man mpirun).
MPIRUN = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # the same for Open MPI 5
}
# HPC-X's collectives do not support MPI_THREAD_MULTIPLE, which Horovod asks for (JCSDA/spack-stack#1681; not run here).
# NVIDIA's images of 24.01 set the first one themselves; Horovod's all-reduce is NCCL's in any case.
HOROVOD_OVER_HPCX = {"OMPI_MCA_coll_hcoll_enable": "0", "OMPI_MCA_coll_ucc_enable": "0"}
# Horovod counts ranks by MPI: in ranks that were started otherwise, each would train alone. A controller that does not
# exist ends them in hvd.init, with "only MPI and Gloo are supported" (horovod/common/utils/env_parser.cc).
NO_HOROVOD = {"HOROVOD_CONTROLLER": "none"}


def environment(launcher: str, flavour: str, gpus: bool, horovod: bool = False, hpcx: bool = False) -> dict[str, str]:
    """The variables for ranks that are started with MPI; `flavour` is the scheduler's plugin, "" for mpirun.

    Without MPI: those that keep the image's Horovod, if it has one, from running N worlds of one. `gpus`: the image
    computes on GPUs; `hpcx`: its MPI is NVIDIA's HPC-X.
    """
    if launcher not in ("mpi", "mpirun"):
        return NO_HOROVOD if horovod and launcher != "gloo" else {}
    return {
        **SHARED_MEMORY,
        **(PMIX if "pmix" in flavour else {}),
        **({} if gpus else CPU),
        **(MPIRUN if launcher == "mpirun" else {}),
        **(HOROVOD_OVER_HPCX if horovod and hpcx else {}),
    }
