from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime import payload
from ctrain_runtime.cluster.model import Allocation, Cluster
from ctrain_runtime.errors import ConfigError, UsageError
from ctrain_runtime.plan.model import LaunchPlan, Preflight
from ctrain_runtime.schedulers.pbs import script
from ctrain_runtime.site.model import Site
from samples import pbs_stand_in
from samples.plans import GPU_PARTITION, a_job, a_launch, a_plan, changed, some_facts

GPU = dataclasses.replace(GPU_PARTITION, cpu_bind="")
PLAIN = Cluster((GPU,))


def pbs(mpi: tuple[str, ...] = (), cluster: Cluster = PLAIN, **parts: Any) -> LaunchPlan:
    """A plan of a site whose mpiexec is `mpi`."""
    site = Site(name="ours", scheduler="pbs", mpi=mpi, **parts.pop("site", {}))
    facts = some_facts(cluster=dataclasses.replace(cluster, mpi=mpi))
    return a_plan(**{"site": site, "facts": facts, "job": a_job(launcher="env"), **parts})


def options(plan: LaunchPlan) -> list[list[str]]:
    """What qsub reads, as its source takes it apart."""
    lines = a_launch(plan).scripts["job.sh"].split("\n")
    return [pbs_stand_in.directive_words(line[5:]) for line in lines if line.startswith("#PBS ")]


def start(plan: LaunchPlan) -> str:
    """The command that starts the tasks, up to the script."""
    lines = a_launch(plan).scripts["job.sh"].split("\n")
    return next(line for line in reversed(lines) if line.startswith("run_job "))[8:].partition(" /bin/bash")[0]


# --- what is submitted


def test_a_job_is_submitted_or_runs_in_the_allocation() -> None:
    job = "/scratch/kim/ctrain/digits-1/job.sh"
    assert a_launch(pbs()).argv == ("qsub", "-f", job)
    inside = dataclasses.replace(PLAIN, allocation=Allocation("41.pbs", 2, "workq", cpus=64, gpus=8))
    assert a_launch(pbs(cluster=inside)).argv == ("/bin/bash", "-p", job)


def test_a_shell_needs_an_interactive_job() -> None:
    shell = {"interactive": True, "ranks_per_node": 1, "gpus_per_node": 1}
    with pytest.raises(UsageError) as caught:
        a_launch(pbs(("pals",), site={"cpu_bind": "depth"}, **shell))
    chunk = "select=1:ncpus=8:mpiprocs=1:ngpus=1"
    line = f"qsub -I -N digits-1 -q amd_a100nv_8 -l {chunk} -l place=scatter -l walltime=01:00:00"
    assert str(caught.value) == f"on PBS a shell needs an interactive job. Run: {line}; retry in it"
    inside = dataclasses.replace(PLAIN, allocation=Allocation("41.pbs", 2, "workq", cpus=64, gpus=8))
    launch = a_launch(pbs(("pals",), cluster=inside, site={"cpu_bind": "depth"}, **shell))
    assert launch.argv == ("/bin/bash", "-p", "/scratch/kim/ctrain/digits-1/job.sh")
    assert "CTRAIN_TASK=0" in launch.scripts["job.sh"]
    assert "\nidentify_task " in launch.scripts["task.sh"]


def test_a_run_directory_that_makes_pbs_answers_invalid() -> None:
    with pytest.raises(UsageError) as caught:
        a_launch(pbs(run_directory=Path("/scratch/k\\im/digits-1")))
    problem = "PBS cannot tell of jobs in /scratch/k\\im/digits-1: a backslash makes its answers invalid JSON"
    assert str(caught.value) == f"{problem}. Use another directory: --runs DIR"


def test_the_request() -> None:
    log = "logs/scheduler.log"
    assert options(pbs(nodes=3, gpus_per_node=4, time="26:00:00")) == [
        ["-N", "digits-1"],
        ["-q", "amd_a100nv_8"],
        ["-l", "select=3:ncpus=32:mpiprocs=4:ngpus=4"],
        ["-l", "place=scatter"],
        ["-l", "walltime=26:00:00"],
        ["-j", "oe"],
        ["-o", log],
        ["-r", "n"],
    ]


def test_mpiprocs_are_tasks_and_memory_is_asked_for_where_it_is_not_given() -> None:
    memory = dataclasses.replace(GPU, memory=1_000_000, cpus=128)
    cluster = Cluster((memory,), memory_is_consumable=True)
    assert ["-l", "select=1:ncpus=128:mpiprocs=1:ngpus=8:mem=1000000mb"] in options(
        pbs(cluster=cluster, job=a_job(launcher="torchrun"))
    )
    given_size = pbs(cluster=cluster, gpus_per_node=1, settings={"mem": "3gb"})
    assert ["-l", "select=1:ncpus=16:mpiprocs=1:ngpus=1:mem=3gb"] in options(given_size)


def test_settings_in_the_words_of_pbs() -> None:
    plan = pbs(
        settings={"account": "ai lab", "constraint": "gpu_type=a100:host=x1", "reservation": "R12"},
        scheduler_options=("-l filesystems=home:eagle", "-Wdepend=afterok:7", "--account=other"),
        site={"submit": ("-l x=it's",)},
    )
    found = options(plan)
    assert found[1:3] == [["-q", "R12"], ["-l", "select=1:ncpus=64:mpiprocs=8:ngpus=8:gpu_type=a100:host=x1"]]
    assert found[8:] == [["-A", "other"], ["-Wdepend=afterok:7"], ["-l", "filesystems=home:eagle"], ["-l", "x=it's"]]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"settings": {"qos": "high"}}, "PBS has no --qos (supported: account, constraint, mem, reservation)"),
        ({"scheduler_options": ("--exclude=x1",)}, "PBS has no --exclude"),
        ({"scheduler_options": ("-J 0-3",)}, "qsub option '-J 0-3' is not supported: all subjobs of an array would"),
        (
            {"scheduler_options": ("-V",)},
            "qsub option '-V' is not supported: it would pass all variables of this shell",
        ),
        ({"scheduler_options": ("-I",)}, "qsub option '-I' is not supported: an interactive job runs no script"),
        ({"scheduler_options": ("-A x\n#PBS -q y",)}, "qsub option '-A x\\n#PBS -q y' holds a line break"),
        ({"cpu_bind": "depth"}, "--cpu-bind depth: pbs_tmrsh does not bind tasks"),
    ],
)
def test_what_pbs_cannot_do_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        a_launch(pbs(**parts))
    assert str(caught.value).startswith(message)


TEXT = st.text(st.characters(blacklist_characters="\n\0", blacklist_categories=("Cs",)), min_size=1)


@given(TEXT, TEXT)
def test_any_value_reaches_qsub_as_it_is(account: str, value: str) -> None:
    found = options(pbs(settings={"account": account}, scheduler_options=(f"-Wx={value}",)))
    assert found[-2:] == [["-A", account], [f"-Wx={value}"]]


# --- how tasks start


def test_tasks_by_tm() -> None:
    assert start(pbs(nodes=2)) == "run_on_nodes 8 task.sh"
    assert start(pbs(nodes=2, job=a_job(launcher="torchrun"))) == "run_on_nodes 1 task.sh"
    assert "node.sh" in a_launch(pbs()).files


def test_tasks_by_pals() -> None:
    hosts = "/scratch/kim/ctrain/digits-1/hosts"
    depth = {"site": {"cpu_bind": "depth"}, "nodes": 2}
    assert start(pbs(("pals",), **depth)) == f"run_mpiexec -n 16 -ppn 8 --hostfile {hosts} --cpu-bind depth --depth 8"
    plan = pbs(("pals",), **depth, job=a_job(launcher="torchrun"))
    assert start(plan) == f"run_mpiexec -n 2 -ppn 1 --hostfile {hosts} --cpu-bind none"
    assert "node.sh" not in a_launch(plan).files


def test_hydra_starts_only_mpi_ranks() -> None:
    hosts = "/scratch/kim/ctrain/digits-1/hosts"
    mpi = pbs(("hydra",), nodes=2, job=a_job(launcher="mpi"), cpu_bind="core")
    assert start(mpi) == f"run_hydra -n 16 -ppn 8 -f {hosts} -bind-to core"
    assert start(pbs(("hydra",), nodes=2)) == "run_on_nodes 8 task.sh"


def test_a_guard_is_between_hydra_and_the_ranks_alone() -> None:
    mpi = changed(pbs(("hydra",), nodes=2, job=a_job(launcher="mpi")), preflight=Preflight(True, "", "gloo"))
    scripts = a_launch(mpi).scripts
    steps = [line for line in scripts["job.sh"].split("\n") if " run_hydra " in line]
    task = "/scratch/kim/ctrain/digits-1/guard.sh /scratch/kim/ctrain/digits-1 /scratch/kim/ctrain/digits-1/task.sh"
    assert [step.partition('"$@"\' ')[2] for step in steps] == [f"{task} preflight", task]
    for plan in (pbs(("hydra",)), pbs(("pals",), job=a_job(launcher="mpi"))):
        assert "guard.sh" not in a_launch(plan).files
    staged = pbs(("hydra",), job=a_job(launcher="mpi"), site={"staging": "/local"}, stage="always", nodes=2)
    [stage] = [line for line in a_launch(staged).scripts["job.sh"].split("\n") if "/stage.sh" in line]
    assert "guard.sh" not in stage and " -pmi-port " in stage and "|| true" in stage


@pytest.mark.parametrize(
    "variables",
    [
        {"PMI_RANK": "9", "PMI_SIZE": "16", "PALS_LOCAL_RANKID": "1"},
        {"PMI_ID": "9", "PMI_PORT": "x1:4"},  # Hydra's mpiexec -pmi-port, 4.0.2
        {"PALS_RANKID": "9"},
    ],
)
def test_who_a_task_is(variables: dict[str, str]) -> None:
    identity = script.identity(pbs(("pals",), nodes=2))
    show = 'echo "$task $tasks $local_task $NODE_RANK $MASTER_ADDR:$MASTER_PORT"'
    environment = {**variables, "MASTER_ADDR": "x1", "MASTER_PORT": "61000"}
    done = subprocess.run(
        ["/bin/bash", "-uc", f"run=/\n{payload.text('ctrain.bash')}\n{identity.bash}\n{show}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "9 16 1 1 x1:61000\n"


def test_of_the_job_only_its_name_passes() -> None:
    assert script.identity(pbs()).passed_prefixes == ()
    assert script.identity(pbs(("pals",))).passed_prefixes == ("PALS_", "PMI_", "PMIX_")


def test_the_gpus_of_the_first_node_are_not_passed_to_all() -> None:
    unset = "unset CUDA_VISIBLE_DEVICES"
    assert unset in a_launch(pbs(("pals",), nodes=2)).scripts["job.sh"]
    assert unset in a_launch(pbs(("hydra",), nodes=2, job=a_job(launcher="mpi"))).scripts["job.sh"]
    assert unset not in a_launch(pbs(("pals",), nodes=1)).scripts["job.sh"]
    assert unset not in a_launch(pbs(nodes=2)).scripts["job.sh"]  # TM gives each node its own


def test_hosts_are_those_of_the_node_file_once_each(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("x2\nx2\nx1\nx1\nx3\n")
    assert "\nlist_hosts 2\n" in a_launch(pbs(("pals",), nodes=2)).scripts["job.sh"]
    for nodes, expected in (
        ("nodes", "x2\nx1\n"),
        ("few", "ctrain: PBS_NODEFILE has 1 hosts, but the plan has 2\n72\n"),
    ):
        (tmp_path / "few").write_text("x1\nx1\n")
        code = f"run={tmp_path}\n{payload.text('ctrain.bash')}\nlist_hosts 2\ncheck_hosts && cat $run/hosts || echo $?"
        done = subprocess.run(
            ["/bin/bash", "-c", code],
            env={"PBS_NODEFILE": str(tmp_path / nodes), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        assert done.stdout == expected


def test_what_a_site_does_not_ask_for() -> None:
    """Where PBS does not know GPUs, no node has the `ngpus` that a chunk asks for, and the job never starts."""
    plan = pbs(site={"not_requested": ("gpus",)})
    assert plan.size.gpus_per_node == 8
    assert ["-l", "select=1:ncpus=64:mpiprocs=8"] in options(plan)


def test_pals_with_pmix() -> None:
    """Two of ALCF's examples start MPI ranks with --pmi=pmix; other tasks speak no PMI."""
    mpi = pbs(("pals-pmix",), job=a_job())
    assert mpi.program.mpi == "pals-pmix"
    assert "mpiexec -n 8 -ppn 8 --hostfile /scratch/kim/ctrain/digits-1/hosts --pmi=pmix" in start(mpi)
    assert mpi.environment.variables["PMIX_MCA_psec"] == "native"
    assert pbs(("pals-pmix",)).program.task_starter == "pals"
    assert "--pmi=pmix" not in start(pbs(("pals-pmix",)))
    assert "--pmi=pmix" not in start(pbs(("pals",), job=a_job()))


def test_the_first_node_has_an_address_in_the_fast_network() -> None:
    job = a_launch(pbs(site={"address_suffix": ".hsn.cm.example.org"}, nodes=2)).scripts["job.sh"]
    assert '\nset_rendezvous "${hosts[0]%%.*}".hsn.cm.example.org ' in job
    with pytest.raises(ConfigError, match=r"^site ours: address_suffix '\$\(x\)' is no part of a host's name"):
        pbs(site={"address_suffix": "$(x)"})
