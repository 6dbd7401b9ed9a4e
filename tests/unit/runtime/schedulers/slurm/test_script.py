from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ctrain_runtime import payload
from ctrain_runtime.cluster.model import Allocation, Cluster
from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan import site_notes
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.slurm import script
from samples.plans import CLUSTER, GPU_PARTITION, a_job, a_launch, a_plan, a_site, some_facts

ENV = a_job(launcher="env")


def job(plan: LaunchPlan) -> str:
    return a_launch(plan).scripts["job.sh"]


def options(plan: LaunchPlan) -> list[str]:
    """What sbatch reads."""
    return [line[len("#SBATCH ") :] for line in job(plan).splitlines() if line.startswith("#SBATCH ")]


def step(plan: LaunchPlan) -> list[str]:
    """The options of srun."""
    line = next(line for line in job(plan).splitlines() if line.startswith("run_job srun "))
    return line[: line.index(" /bin/bash")].split()[2:]


def inside(**allocation: Any) -> Any:
    plain = Allocation("41873", 2, "amd_a100nv_8", cpus=64, gpus=8)
    return some_facts(cluster=dataclasses.replace(CLUSTER, allocation=dataclasses.replace(plain, **allocation)))


# --- what is submitted


def test_a_job_is_submitted_or_runs_in_the_allocation() -> None:
    assert a_launch(a_plan()).argv[:2] == ("sbatch", "--parsable")
    assert a_launch(a_plan(facts=inside())).argv[:2] == ("/bin/bash", "-p")


def test_sites_and_users_may_say_more() -> None:
    plan = a_plan(
        site=a_site(submit=("--account=ai lab",), comment="pytorch"),
        settings={"qos": "long"},
        scheduler_options=("--switches=1",),
    )
    assert options(plan)[-4:] == ["--comment=pytorch", "--qos=long", "'--account=ai lab'", "--switches=1"]
    assert "--comment=mine" in options(a_plan(site=a_site(comment="pytorch"), settings={"comment": "mine"}))
    assert "--comment=pytorch" not in options(a_plan(site=a_site(comment="pytorch"), settings={"comment": "mine"}))


def test_memory_is_asked_for_only_where_it_is_shared_out() -> None:
    shared = dataclasses.replace(GPU_PARTITION, memory=1_000_000)
    facts = some_facts(cluster=Cluster((shared,), ("pmix",), memory_is_consumable=True))
    assert "--mem=125000M" in options(a_plan(facts=facts, gpus_per_node=1))
    assert not [option for option in options(a_plan()) if option.startswith("--mem")]
    explicit = options(a_plan(facts=facts, gpus_per_node=1, settings={"mem": "9G"}))
    assert [option for option in explicit if option.startswith("--mem")] == ["--mem=9G"]


def test_a_partition_without_a_limit() -> None:
    endless = some_facts(cluster=Cluster((dataclasses.replace(GPU_PARTITION, time_limit=None),), ("pmix",)))
    assert "--time=UNLIMITED" in options(a_plan(facts=endless, time="infinite"))
    assert "--time=9-00:00:00" in options(a_plan(facts=endless, time="9-0"))


def test_sbatch_does_not_expand_a_percent_sign_in_the_run_directory() -> None:
    plan = a_plan(run_directory=Path("/scratch/100%j/x"))
    assert "--output=/scratch/100%%j/x/logs/job.log" in options(plan)
    assert "--chdir=/scratch/100%j/x" in options(plan)


@pytest.mark.parametrize("option", ["--array=0-3", "-a 1", "-a1"])
def test_arrays_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=r"is not supported: all tasks of an array would write to one run directory"):
        options(a_plan(scheduler_options=(option,)))


@pytest.mark.parametrize("parts", [{"site": a_site(submit=("--a\n--b",))}, {"scheduler_options": ("--a\nrm -rf x",)}])
def test_a_line_break_in_an_option_of_sbatch_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"holds a line break. Write it in one line"):
        a_launch(a_plan(**parts))


# --- the step


def test_the_step_of_a_job() -> None:
    assert step(a_plan(nodes=2)) == [
        *("--job-name=digits-1", "--nodes=2", "--ntasks=16", "--ntasks-per-node=8", "--cpus-per-task=8"),
        *("--distribution=block:block", "--cpu-bind=cores", "--mpi=pmix", "--kill-on-bad-exit=1"),
        "--quit-on-interrupt",
    ]


def test_the_step_in_an_allocation_asks_for_its_gpus_and_shares_with_a_step_around_it() -> None:
    assert "--gres=gpu:4" in step(a_plan(facts=inside(), gpus_per_node=4))
    assert "--overlap" not in step(a_plan(facts=inside()))
    assert "--overlap" in step(a_plan(facts=inside(in_step=True)))


def test_torchrun_is_one_task_per_node_with_all_its_cores() -> None:
    taken = step(a_plan(job=a_job(launcher="torchrun"), nodes=2))
    assert {"--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=64", "--mpi=none"} <= set(taken)


def test_how_ranks_are_bound_can_be_chosen() -> None:
    assert "--cpu-bind=none" in step(a_plan(cpu_bind="none"))
    assert "--cpu-bind=sockets" in step(a_plan(site=a_site(cpu_bind="sockets")))
    assert "--cpu-bind=none" in step(a_plan(site=a_site(cpu_bind="sockets"), cpu_bind="none"))


def test_the_store_learns_how_long_the_image_is_needed() -> None:
    text = job(a_plan(facts=some_facts(lease_dir="/apps/in use"), time="90"))
    assert "\nct_lease='/apps/in use/" in text and "\nrenew_lease 90\n" in text
    requeued = job(a_plan(facts=some_facts(lease_dir="/apps/in use"), time="90", retries=1))
    assert "\nrenew_lease 43200\n" in requeued, "30 days, as while it is queued: it may be again"
    assert "lease" not in job(a_plan())


# --- the rendezvous


def rendezvous(hosts: str, job_id: str = "7", step_id: str = "0", run: str = "/a") -> tuple[str, int]:
    plan = a_plan(run_directory=Path(run))
    bash = (
        f"run={run}\n{payload.text('ctrain.bash')}\n{script.identity(plan).bash}"
        + '\nprintf "%s\\0%s" "$MASTER_ADDR" "$MASTER_PORT"'
    )
    task = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    where = {"SLURM_STEP_NODELIST": hosts, "SLURM_JOB_ID": job_id, "SLURM_STEP_ID": step_id}
    done = subprocess.run(
        ["/bin/bash", "-p", "-c", bash], env={**task, **where}, capture_output=True, text=True, check=True
    )
    address, port = done.stdout.split("\0")
    return address, int(port)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("gpu[03-05,09],cpu1", "gpu03"),
        ("gpu[09,03-05]", "gpu09"),
        ("r[1-2]n[3-4]", "r1n3"),
        ("rack[1-2]n[01-02]", "rack1n01"),  # as Slurm 22.05 to 26.05 expand it: rack1n01, rack1n02, rack2n01, rack2n02
        ("gpu[01-02],nd[001-003,7],login1", "gpu01"),
        ("x1y[1-2]z", "x1y1z"),
        ("a1,b[2]-ib", "a1"),
        ("b[2]-ib,a1", "b2-ib"),
        ("node-[0-1]-[10,20]-x,z", "node-0-10-x"),
        ("n[1]", "n1"),
        ("gpu01.cluster.example,gpu02", "gpu01.cluster.example"),
    ],
)
def test_the_first_node_of_a_step(hosts: str, first: str) -> None:
    assert rendezvous(hosts)[0] == first


number = st.integers(0, 99).map("{:02}".format)
ranges = st.lists(st.one_of(number, st.tuples(number, number).map("-".join)), min_size=1, max_size=3)
plain = st.from_regex(r"[a-z][a-z0-9-]{0,4}", fullmatch=True)
name = st.lists(st.one_of(plain, ranges), min_size=1, max_size=4).filter(lambda parts: isinstance(parts[0], str))


def written(parts: list[Any]) -> str:
    return "".join(part if isinstance(part, str) else f"[{','.join(part)}]" for part in parts)


def first_of(parts: list[Any]) -> str:
    return "".join(part if isinstance(part, str) else part[0].split("-")[0] for part in parts)


@given(st.lists(name, min_size=1, max_size=3))
@example([["gpu", ["03-05", "09"]], ["cpu1"]])
def test_the_first_node_of_any_list(names: list[list[Any]]) -> None:
    assert rendezvous(",".join(map(written, names)))[0] == first_of(names[0])


@pytest.mark.parametrize(("variables", "kept"), [({}, ""), ({"SLURMD_NODENAME": "gpu01"}, "/scratch")])
def test_tmpdir_of_a_login_node_stays_there(variables: dict[str, str], kept: str) -> None:
    """The shell of salloc is on one; a batch script is on a node, whose directory it may have chosen."""
    text = f'run=/\n{payload.text("ctrain.bash")}\nleave_login_node\necho "${{TMPDIR-}}"'
    done = subprocess.run(["bash", "-c", text], env={"TMPDIR": "/scratch", **variables}, stdout=subprocess.PIPE)
    assert done.stdout.decode().strip() == kept


def test_steps_of_one_allocation_and_runs_of_one_step_meet_at_different_ports() -> None:
    """Else two runs that share an allocation would join each other's process group."""
    ports = [rendezvous("a", job_id, step_id)[1] for job_id, step_id in (("7", "0"), ("7", "1"), ("9", "0"))]
    assert len(set(ports)) == 3
    assert rendezvous("a", run="/a")[1] != rendezvous("a", run="/b")[1]


@pytest.mark.parametrize(("job_id", "step_id"), [("1", "0"), ("67108863", "4294967290"), ("9999999", "0")])
def test_ports_lie_above_the_ephemeral_ones(job_id: str, step_id: str) -> None:
    assert 61000 <= rendezvous("a", job_id, step_id)[1] <= 65535


def test_a_task_outside_of_a_step_stops() -> None:
    bash = f"run=/\n{payload.text('ctrain.bash')}\n{script.identity(a_plan()).bash}"
    done = subprocess.run(["/bin/bash", "-p", "-c", bash], env={"PATH": os.defpath}, capture_output=True, text=True)
    assert done.returncode != 0
    assert "SLURM_PROCID" in done.stderr


# --- shells


def test_a_shell_gets_an_allocation_by_srun_and_needs_no_job_script() -> None:
    launch = a_launch(a_plan(interactive=True, nodes=1, gpus_per_node=1, settings={"qos": "long"}, job=ENV))
    argv = list(launch.argv[: launch.argv.index("/bin/bash")])
    assert argv[:4] == ["srun", "--pty", "--mpi=none", "--cpu-bind=cores"]
    for option in ("--partition=amd_a100nv_8", "--gres=gpu:1", "--time=01:00:00", "--qos=long", "--ntasks=1"):
        assert option in argv
    assert not any(option.startswith(("--output", "--no-requeue")) for option in argv)
    assert list(launch.scripts) == ["task.sh"]
    assert "exec >" not in launch.scripts["task.sh"], "its output is the terminal's"


@pytest.mark.parametrize("in_step", [False, True])
def test_a_shell_in_an_allocation_shares_its_resources(in_step: bool) -> None:
    launch = a_launch(a_plan(interactive=True, nodes=1, ranks_per_node=1, job=ENV, facts=inside(in_step=in_step)))
    assert launch.argv[0] == "srun"
    argv = launch.argv[1 : launch.argv.index("/bin/bash")]
    size = ("--overlap", "--nodes=1", "--ntasks=1", "--cpus-per-task=64", "--gres=gpu:8")
    assert argv == ("--pty", "--mpi=none", "--cpu-bind=cores", *size)


def test_a_shell_does_not_wait_for_a_copy_of_the_image() -> None:
    staged = a_site(staging="/local")
    shell = a_plan(site=staged, interactive=True, stage="always", nodes=1, ranks_per_node=1, job=ENV)
    assert a_plan(site=staged, stage="always").staging.copies and not shell.staging.copies
    assert not any("stage" in name for name in a_launch(shell).scripts)


def test_what_a_site_does_not_ask_for() -> None:
    """NERSC's users choose nodes by --constraint and --qos: whether a job may name a partition is unknown."""
    site = a_site(not_requested=("partition", "gpus"), submit=("--constraint=gpu",))
    asked = options(a_plan(site=site))
    assert not [option for option in asked if option.startswith(("--partition", "--gres"))]
    assert "--partition=skl" in options(a_plan(site=site, partition="skl", gpus_per_node=0))
    shell = a_launch(a_plan(site=site, job=ENV, interactive=True, ranks_per_node=1, gpus_per_node=1)).argv
    assert not [option for option in shell if option.startswith(("--partition", "--gres"))]
    assert "--gres=gpu:8" not in step(a_plan(site=site, facts=inside()))


def test_memory_that_must_not_be_asked_for() -> None:
    """KISTI's guide: --mem is not usable. Its Slurm allocates memory like cores, for which ctrain would ask."""
    shared = dataclasses.replace(GPU_PARTITION, memory=1_000_000)
    site = a_site(not_requested=("memory",), memory_per_gpu=1000)
    for allocation in (None, Allocation("41873", 2, "amd_a100nv_8", cpus=64, gpus=8, memory=1_000_000)):
        cluster = Cluster((shared,), ("pmix",), memory_is_consumable=True, allocation=allocation)
        plan = a_plan(site=site, facts=some_facts(cluster=cluster), gpus_per_node=1)
        assert plan.size.memory is None
        assert "--mem" not in job(plan)
    explicit = a_plan(site=site, settings={"mem": "9G"})
    assert "--mem=9G" in options(explicit)
    assert site_notes.notes(explicit, site, CLUSTER, {}) == (
        "--mem 9G: by its documentation, site neuron takes no requests for memory",
    )


@pytest.mark.parametrize("hosts", ["n7", "n[7-9]", "n7.cluster,n8"])
def test_the_first_node_has_an_address_in_the_fast_network(hosts: str) -> None:
    plan = a_plan(site=a_site(address_suffix="-hsn0"), job=ENV)
    bash = f"run=/\n{payload.text('ctrain.bash')}\n{script.identity(plan).bash}; echo $MASTER_ADDR"
    known = {"SLURM_STEP_NODELIST": hosts, "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
    known |= dict.fromkeys(("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"), "0")
    done = subprocess.run(["/bin/bash", "-p", "-c", bash], env=known, capture_output=True, text=True, check=True)
    assert done.stdout == "n7-hsn0\n"
