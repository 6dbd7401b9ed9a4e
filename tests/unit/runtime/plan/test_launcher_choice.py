from __future__ import annotations

from typing import Any

import pytest

from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.launcher_choice import ALONE, Imports, LauncherChoice, choose, refuse_alone
from ctrain_runtime.plan.size import JobSize
from samples.plans import CLUSTER, GPU_PARTITION, a_job, a_plan, a_site, changed

MPI = {"mpi": "Open MPI 4.1.4", "torch": "2.13.0", "horovod": "0.28.1"}
NO_MPI = {"torch": "2.13.0"}
NO_PMI = Cluster((GPU_PARTITION,), ("none", "cray_shasta"))
LOCAL = Cluster()
NO_PLUGIN = "slurm has no MPI plugin pmix or pmi2 (available: none, cray_shasta)"
ONLY_PMI2 = Cluster((GPU_PARTITION,), ("none", "pmi2"))
OPEN_MPI_5 = {**MPI, "mpi": "Open MPI 5.0.10"}
NO_PMIX = "Open MPI 5.0.10 of the image needs PMIx: under slurm's pmi2 each rank would be alone (available: none, pmi2)"


def program(*libraries: str, optional: tuple[str, ...] = ()) -> Imports:
    return Imports("train.py", frozenset((*libraries, *optional)), frozenset(libraries))


@pytest.mark.parametrize(
    ("imports", "software", "cluster", "nodes", "launcher", "reason"),
    [
        (program("horovod", "torch"), MPI, CLUSTER, 2, "mpi", "train.py imports horovod"),
        (program("horovod", "torch"), MPI, LOCAL, 2, "mpi", "train.py imports horovod"),
        (program("horovod"), MPI, NO_PMI, 1, "mpi", "train.py imports horovod"),  # by the image's mpirun
        (
            program("horovod"),
            MPI,
            NO_PMI,
            2,
            "gloo",
            f"train.py imports horovod, and {NO_PLUGIN}",
        ),
        (program("horovod"), NO_MPI, CLUSTER, 2, "gloo", "train.py imports horovod, and the image has no MPI"),
        (program("horovod"), OPEN_MPI_5, ONLY_PMI2, 2, "gloo", f"train.py imports horovod, and {NO_PMIX}"),
        (program("horovod"), OPEN_MPI_5, ONLY_PMI2, 1, "mpi", "train.py imports horovod"),  # by the image's mpirun
        (program("horovod"), MPI, ONLY_PMI2, 2, "mpi", "train.py imports horovod"),
        (program("torch"), OPEN_MPI_5, ONLY_PMI2, 2, "env", "train.py imports torch"),
        (program("mpi4py"), OPEN_MPI_5, ONLY_PMI2, 2, "mpi", "train.py imports mpi4py"),  # is then refused
        (Imports(), OPEN_MPI_5, ONLY_PMI2, 2, "env", NO_PMIX),
        (program("mpi4py", "torch"), MPI, CLUSTER, 2, "mpi", "train.py imports mpi4py"),
        (program("mpi4py", "horovod"), NO_MPI, NO_PMI, 2, "mpi", "train.py imports mpi4py"),  # is then refused
        (program("torch", "deepspeed"), MPI, CLUSTER, 2, "env", "train.py imports deepspeed"),
        (program("torch", "lightning"), MPI, CLUSTER, 2, "env", "train.py imports lightning"),
        (program("accelerate"), MPI, CLUSTER, 2, "env", "train.py imports accelerate"),
        (program("jax"), MPI, CLUSTER, 2, "env", "train.py imports jax"),
        (program(optional=("torch",)), MPI, LOCAL, 1, "env", "train.py imports torch"),
        (Imports(), MPI, CLUSTER, 2, "mpi", "the image has MPI"),
        (Imports(), MPI, LOCAL, 1, "mpi", "the image has MPI"),
        (Imports(), NO_MPI, CLUSTER, 2, "env", "the image has no MPI"),
        (Imports(), {}, CLUSTER, 2, "env", "the image's contents are unknown"),
        (Imports(), NO_MPI, LOCAL, 1, "env", "the image has no MPI"),  # mpirun would not be found
        (Imports(), MPI, NO_PMI, 2, "env", NO_PLUGIN),
    ],
)
def test_the_launcher_that_is_proposed(
    imports: Imports, software: dict[str, str], cluster: Cluster, nodes: int, launcher: str, reason: str
) -> None:
    choice = choose("auto", imports, software, a_site(), cluster, JobSize(nodes, 2))
    assert choice == LauncherChoice(launcher, (f"launcher {launcher}: {reason}",))


@pytest.mark.parametrize(
    ("launcher", "imports", "remedy"),
    [
        ("env", program("horovod"), "mpi or gloo"),
        ("torchrun", program("horovod", "torch"), "mpi or gloo"),
        ("env", program("mpi4py"), "mpi"),
        ("gloo", program("mpi4py", "horovod"), "mpi"),
        ("torchrun", program("mpi4py"), "mpi"),
    ],
)
def test_ranks_that_would_train_alone_are_refused(launcher: str, imports: Imports, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose(launcher, imports, MPI, a_site(), CLUSTER, JobSize(4, 2))
    library = "mpi4py" if remedy == "mpi" else "horovod"
    assert str(caught.value) == (
        f"train.py imports {library}: with launcher {launcher} each of 8 ranks would train alone."
        f" Pass --launcher {remedy}"
    )
    assert choose(launcher, imports, MPI, a_site(), CLUSTER, JobSize(1, 1)) == LauncherChoice(launcher)


@pytest.mark.parametrize(
    ("launcher", "imports"),
    [
        ("mpi", program("horovod", "mpi4py")),
        ("gloo", program("horovod")),
        ("env", program("torch", optional=("horovod",))),  # one of several ways to run
        ("torchrun", program("torch")),
        ("env", Imports()),
    ],
)
def test_a_launcher_that_is_named_is_taken_without_a_word(launcher: str, imports: Imports) -> None:
    assert choose(launcher, imports, {}, a_site(), CLUSTER, JobSize(4, 2)) == LauncherChoice(launcher)


def test_gloo_without_horovod_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^launcher gloo needs Horovod, which the image does not have"):
        choose("gloo", Imports(), NO_MPI, a_site(), CLUSTER, JobSize(4, 2))


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({}, True),
        ({"independent": True}, False),
        ({"launcher": "node"}, False),
        ({"nodes": 1, "ranks_per_node": 1}, False),
    ],
)
def test_several_ranks_of_a_program_that_cannot_connect_them_are_refused(
    changes: dict[str, Any], is_refused: bool
) -> None:
    plan = changed(a_plan(job=a_job(launcher="env"), nodes=1, ranks_per_node=4), **changes)
    refuse_alone(Imports("mnist.py", frozenset({"torch"}), frozenset({"torch"})), plan)
    alone = Imports("mnist.py", frozenset({"torch"}), frozenset({"torch"}), alone=True)
    if not is_refused:
        refuse_alone(alone, plan)
        return
    with pytest.raises(UsageError) as caught:
        refuse_alone(alone, plan)
    assert str(caught.value) == (
        "each of 4 ranks would train a model of its own: mnist.py imports torch, but nothing that connects ranks. "
        "If that is meant, pass --independent; else run one rank: --nodes 1 --ranks-per-node 1"
    )


@pytest.mark.parametrize(
    ("imports", "launcher", "alone"),
    [
        (program("torch"), "env", True),
        (program("torch", "lightning", "accelerate"), "env", True),
        (Imports(), "env", True),
        (program("horovod", "torch"), "mpi", False),
        (program("mpi4py"), "mpi", False),
        (program("deepspeed", "torch"), "env", False),  # looks for MPI without them
        (Imports("train.py", frozenset({"torch"}), frozenset({"torch"}), needs_rank=True), "env", False),
    ],
)
def test_one_rank_alone_is_no_world(imports: Imports, launcher: str, alone: bool) -> None:
    choice = choose("auto", imports, MPI, a_site(), CLUSTER, JobSize(1, 1))
    assert (choice.launcher, choice.independent, choice.notes[0] == ALONE) == (launcher, alone, alone)
    assert not choose("auto", imports, MPI, a_site(), CLUSTER, JobSize(1, 2)).independent
    assert choose("env", Imports(), MPI, a_site(), CLUSTER, JobSize(1, 1)) == LauncherChoice("env")


def test_independent_ranks_may_count_each_for_itself() -> None:
    choice = choose("env", program("mpi4py"), MPI, a_site(), CLUSTER, JobSize(2, 2), independent=True)
    assert choice == LauncherChoice("env", independent=True)
