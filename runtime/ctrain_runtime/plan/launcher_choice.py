"""Chooses how ranks are started: by what the program imports, the image has and the scheduler starts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.errors import SchedulerError, UsageError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.mpi_start import start_mpi
from ctrain_runtime.plan.size import JobSize
from ctrain_runtime.site.model import Site

HOROVOD = "horovod"
# Their programs count ranks by MPI alone: started otherwise, each rank would train alone, without an error.
COUNTED_BY_MPI = {"mpi4py": ("mpi",), HOROVOD: ("mpi", "gloo")}
ALONE = "one rank alone: without RANK, WORLD_SIZE and MASTER_ADDR (--launcher env sets them)"
LIBRARIES = (*COUNTED_BY_MPI, "deepspeed", "accelerate", "lightning", "pytorch_lightning", "jax", "torch")


@dataclass(frozen=True)
class Imports:
    """The LIBRARIES that a program imports: all of them, and those that it requires.

    `source`: the file that says so. `needs_rank`: it forms a group, or reads RANK, without asking whether there is one.
    `alone`: certainly nothing in it could connect ranks.
    """

    source: str = ""
    libraries: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    needs_rank: bool = False
    alone: bool = False


@dataclass(frozen=True)
class LauncherChoice:
    """The launcher of a run. `notes` has a line with the reason, unless job, command or option name the launcher.
    `independent`: its one rank is alone."""

    launcher: str
    notes: tuple[str, ...] = ()
    independent: bool = False


def choose(
    launcher: str,
    imports: Imports,
    software: Mapping[str, str],
    site: Site,
    cluster: Cluster,
    size: JobSize,
    *,
    independent: bool = False,
) -> LauncherChoice:
    """The launcher in the place of `auto`; any other is checked against the program, unless its ranks form no world.

    `software` is that of the image's manifest, empty if unknown. Raises UsageError if the ranks would not find each
    other.
    """
    if independent:
        return LauncherChoice(launcher, independent=True)
    ranks = size.world_size
    if launcher == "auto" and ranks == 1 and not _needs_rank(imports):
        return LauncherChoice("env", (ALONE,), independent=True)
    if launcher == "auto":
        launcher, reason = _propose(imports, software, site, cluster, size.nodes)
        return LauncherChoice(launcher, (f"launcher {launcher}: {reason}",))
    for library, launchers in COUNTED_BY_MPI.items():
        if library in imports.required and launcher not in launchers and ranks > 1:
            raise UsageError(
                f"{imports.source} imports {library}: with launcher {launcher} each of {ranks} ranks would train alone",
                f"Pass --launcher {' or '.join(launchers)}",
            )
    if launcher == "gloo" and software and HOROVOD not in software:
        raise UsageError("launcher gloo needs Horovod, which the image does not have", "Pass --launcher env or mpi")
    return LauncherChoice(launcher)


def _needs_rank(imports: Imports) -> bool:
    """Whether a program wants the variables of a world even if it is alone: most of those that test for RANK would then
    start NCCL, also on CPUs."""
    return imports.needs_rank or bool(imports.libraries & {*COUNTED_BY_MPI, "deepspeed"})


def refuse_alone(imports: Imports, plan: LaunchPlan) -> None:
    """Refuse several ranks of a program that would train a model in each of them. Raises UsageError."""
    if imports.alone and plan.size.world_size > 1 and not plan.program.independent and plan.program.launcher != "node":
        raise UsageError(
            f"each of {plan.size.world_size} ranks would train a model of its own:"
            f" {imports.source} imports torch, but nothing that connects ranks",
            "If that is meant, pass --independent; else run one rank: --nodes 1 --ranks-per-node 1",
        )


def _propose(
    imports: Imports, software: Mapping[str, str], site: Site, cluster: Cluster, nodes: int
) -> tuple[str, str]:
    without = "" if "mpi" in software else "the image has no MPI" if software else "the image's contents are unknown"
    try:
        start_mpi(site, cluster, nodes, software)
    except SchedulerError as error:
        without = error.message
    library = next((name for name in LIBRARIES if name in imports.libraries), "")
    if not library:
        return ("env", without) if without else ("mpi", "the image has MPI")
    reason = f"{imports.source} imports {library}"
    if library == HOROVOD and without:
        return "gloo", f"{reason}, and {without}"
    return "mpi" if library in COUNTED_BY_MPI else "env", reason
