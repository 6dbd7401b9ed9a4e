"""The sites that ctrain brings, as their documentation describes them; sources: sites/sources/NAME.yaml."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.errors import ResourceError, SchedulerError
from ctrain_runtime.plan import site_notes, sizing
from ctrain_runtime.plan.launcher_choice import Imports, choose
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.size import SizeRequest
from ctrain_runtime.run import site_engine
from ctrain_runtime.run.targets import describe_cluster
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import load_site
from samples.plans import a_job, a_launch, a_plan, an_image, some_facts
from samples.programs import answer
from samples.sample_images import write_store

OPEN_MPI = {"torch": "2.6.0", "cuda": "12.6", "mpi": "Open MPI 4.1.7", "horovod": "0.28.1", "nccl": "2.23.4"}
MPICH = {**OPEN_MPI, "mpi": "MPICH 4.2.3", "nccl": "2.27.3"}
SLINGSHOT = ("polaris", "perlmutter")


@functools.cache
def site(name: str) -> Site:
    return load_site(name)[0]


def plan(name: str, launcher: str = "env", software: Any = None, **options: Any) -> LaunchPlan:
    """A plan where there is no cluster."""
    own = site(name)
    facts = some_facts(cluster=describe_cluster(own), engine=site_engine.find(own)[0])
    required = {option: "mine" for option in own.required if option != "comment"}
    settings = {**required, **options.pop("settings", {})}
    image = an_image(software=software or OPEN_MPI)
    return a_plan(site=own, facts=facts, job=a_job(launcher=launcher), image=image, settings=settings, **options)


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(ResourceError) as caught:
        plan(name, **options)
    return caught.value.message


def directives(planned: LaunchPlan) -> str:
    lines = a_launch(planned).scripts["job.sh"].splitlines()
    return "\n".join(line for line in lines if line.startswith("#"))


def notes(planned: LaunchPlan, software: Any = None) -> tuple[str, ...]:
    own = site(planned.site)
    return site_notes.notes(planned, own, describe_cluster(own), OPEN_MPI if software is None else software)


# --- Aurora


@pytest.mark.parametrize(
    ("launcher", "ranks", "listed", "threads"),
    [
        ("env", None, 12, 4),
        ("env", 6, 6, 4),
        ("env", 1, 1, 4),
        ("env", 13, 0, 8),
        ("torchrun", None, 0, 8),
    ],
)
def test_the_ranks_of_aurora_have_their_cores(launcher: str, ranks: int, listed: int, threads: int) -> None:
    """17 threads on one core each were rendered."""
    planned = plan("aurora", launcher, ranks_per_node=ranks)
    documented = [f"{first}-{first + 3}" for first in (*range(4, 28, 4), *range(56, 80, 4))]
    assert planned.placement.cpu_bind == (":".join(("list", *documented[:listed])) if listed else "none")
    assert planned.size.cores_per_rank == threads
    assert f"OMP_NUM_THREADS={planned.size.cores_per_rank}\n" in a_launch(planned).scripts["task.sh"]
    assert any("not bound to cores" in note for note in notes(planned)) is (ranks == 13)


def test_the_queues_of_aurora() -> None:
    assert "partition debug allows 2 nodes per job" in refusal("aurora", nodes=3)
    assert "partition prod needs at least 256 nodes per job, 2 req" in refusal("aurora", nodes=2, partition="prod")
    assert "partition debug-scaling needs at least 2 nodes" in refusal("aurora", nodes=1, partition="debug-scaling")
    assert "partition capacity allows 16 nodes" in refusal("aurora", nodes=17, partition="capacity")
    assert "partition prod has 10624 usable nodes, 10625 requested" in refusal("aurora", nodes=10625, partition="prod")
    for nodes, hours in ((256, 12), (1024, 12), (1025, 18), (1999, 18), (2000, 24), (10624, 24)):
        assert plan("aurora", nodes=nodes, partition="prod", time="24:00:00" if hours == 24 else f"{hours}:00:00")
        message = refusal("aurora", nodes=nodes, partition="prod", time="25:00:00")
        assert f"allows {'1-00' if hours == 24 else hours}:00:00, 25:00:00 requested" in message
    assert plan("aurora", partition="capacity", nodes=16, time="168:00:00").size.time_limit == 168 * 60


def test_a_job_of_aurora() -> None:
    asked = directives(plan("aurora", nodes=2))
    assert "ngpus" not in asked
    script = a_launch(plan("aurora", nodes=2)).scripts["job.sh"]
    assert 'set_rendezvous "${hosts[0]%%.*}".hsn.cm.aurora.alcf.anl.gov ' in script
    mpi = plan("aurora", "mpi", {"torch": "2.10.0+xpu"}, nodes=2)
    assert "--pmi=pmix" in a_launch(mpi).scripts["job.sh"]


def test_the_settings_of_aurora_are_those_of_its_example_for_one_node() -> None:
    planned = plan("aurora", nodes=2)
    wanted = {"CCL_ATL_TRANSPORT": "ofi", "CCL_ZE_IPC_EXCHANGE": "sockets", "FI_PROVIDER": "tcp"}
    assert wanted.items() <= planned.environment.variables.items()
    assert "CCL_KVS_MODE" not in planned.environment.variables
    assert "/usr/lib64:/hostevent:ro" in map(str, planned.mounts.paths)
    assert planned.environment.library_paths == ("/hostevent",)
    assert any("for one node" in note for note in notes(planned))
    assert not any("for one node" in note for note in notes(plan("aurora", nodes=1)))


# --- Polaris


@pytest.mark.parametrize(
    ("nodes", "time", "limit"),
    [
        (10, "20:00:00", "03:00:00"),
        (24, "3:01:00", "03:00:00"),
        (25, "20:00:00", "06:00:00"),
        (99, "7:00:00", "06:00:00"),
    ],
)
def test_a_job_that_would_vanish_on_polaris_is_refused(nodes: int, time: str, limit: str) -> None:
    message = refusal("polaris", nodes=nodes, time=time, partition="prod")
    assert f"allows {limit}, {time} requested" in message
    assert plan("polaris", nodes=nodes, time=limit, partition="prod").size.time_limit
    assert plan("polaris", nodes=100, time=time, partition="prod").size.time_limit


def test_the_queues_of_polaris() -> None:
    assert "needs at least 10 nodes" in refusal("polaris", nodes=9, partition="prod")
    assert plan("polaris", nodes=4, partition="capacity", time="168:00:00").size.time_limit == 168 * 60
    assert "allows 4 nodes" in refusal("polaris", nodes=5, partition="capacity")
    assert "partition capacity: 1 job of yours can run at a time, 2 can run or wait" in notes(
        plan("polaris", partition="capacity")
    )


@pytest.mark.parametrize("name", ["polaris", "aurora"])
def test_jobs_of_less_than_5_minutes_fit_no_queue_of_alcf(name: str) -> None:
    """A routing queue drops them without a word."""
    for queue, nodes in (("debug", 1), ("prod", 256)):
        message = refusal(name, nodes=nodes, partition=queue, time="4:00")
        assert f"partition {queue} needs at least 00:05:00 per job, 4:00 requested" in message
        assert plan(name, nodes=nodes, partition=queue, time="5").size.time_limit == 5


def test_the_plugin_of_polaris_and_what_it_needs() -> None:
    planned = plan("polaris", nodes=2)
    plugin = planned.environment.variables["NCCL_NET_PLUGIN"]
    assert plugin == "/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib/libnccl-net.so"
    assert any(plugin.startswith(f"{mount.target}/") for mount in planned.mounts.paths)
    for name in ("libcxi", "libjson-c", "libnl-3"):
        assert any(f"/{name}.so" in pattern for pattern in planned.environment.host_libraries)
    assert {"/soft/libraries/hwloc/lib", plugin.rpartition("/")[0]} <= set(planned.environment.library_paths)
    old = plan("polaris", nodes=2, software={**OPEN_MPI, "nccl": "2.18.3"})  # would look for libnccl-net-PATH.so
    assert "NCCL_NET_PLUGIN" not in old.environment.variables
    task = a_launch(planned).scripts["task.sh"]
    assert "--fakeroot" in task
    assert "add_host_libraries " in task


def test_both_cases_of_proxies() -> None:
    """curl reads only http_proxy."""
    for name in ("polaris", "aurora"):
        environment = plan(name).environment.variables
        for variable in ("http_proxy", "https_proxy"):
            assert environment[variable] == environment[variable.upper()] == "http://proxy.alcf.anl.gov:3128"
        assert "alcf.anl.gov" in environment["no_proxy"]


def test_mpi_is_not_the_default_where_open_mpi_does_not_work() -> None:
    own = site("polaris")
    cluster = describe_cluster(own)
    wanted = sizing.fit(SizeRequest(nodes=2), cluster, own).size
    horovod = Imports("train.py", frozenset({"horovod"}), frozenset({"horovod"}))
    chosen = choose("auto", horovod, OPEN_MPI, own, cluster, wanted)
    assert chosen.launcher == "gloo"
    assert "Open MPI 4.1.7 of the image" in chosen.notes[0]
    assert choose("auto", horovod, MPICH, own, cluster, wanted).launcher == "mpi"
    assert choose("auto", Imports(), OPEN_MPI, own, cluster, wanted).launcher == "env"
    with pytest.raises(SchedulerError, match="each rank would be alone"):
        plan("polaris", "mpi", nodes=2)
    mpi = plan("polaris", "mpi", MPICH, nodes=2)
    assert any(path.endswith("/lib-abi-mpich") for path in mpi.environment.library_paths)
    assert "add_pals_sockets" in a_launch(mpi).scripts["task.sh"].splitlines()
    assert not any("mpich" in path for path in plan("polaris", nodes=2).environment.library_paths)


# --- Perlmutter


def test_perlmutter_says_that_its_engine_is_unknown() -> None:
    assert any("podman-hpc and Shifter" in note for note in notes(plan("perlmutter")))
    assert any("NCCL_NET_PLUGIN" in note for note in notes(plan("perlmutter", nodes=2)))


def test_the_qos_of_perlmutter() -> None:
    planned = plan("perlmutter", nodes=8)
    assert planned.size.time_limit == 30
    assert "--partition" not in directives(planned)
    assert "#SBATCH --constraint=gpu" in directives(planned)
    assert "partition gpu (QOS debug) allows 8 nodes per job, 9 requested" in refusal("perlmutter", nodes=9)
    regular = plan("perlmutter", nodes=9, time="24:00:00", settings={"qos": "regular"})
    assert regular.size.time_limit == 24 * 60
    assert "#SBATCH --qos=regular" in directives(regular)


def test_threads_of_perlmutter_are_cores() -> None:
    """-c counts 128 hardware threads of 64 cores."""
    planned = plan("perlmutter")
    assert (planned.size.cpus_per_rank, planned.size.cores_per_rank) == (32, 16)


def test_what_is_shown_counts_cores(programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """32 hardware threads were shown as 32 cores."""
    answer(programs, "apptainer", "apptainer version 1.4.5\n")
    store = write_store(tmp_path / "store", {}, channels={"pytorch_prod": "pytorch_24.12-hd-py3-r3.sif"})
    argv = ["run", "--site", "perlmutter", "--account", "x", "--image", "pytorch", "--store", str(store), "--dry-run"]
    assert main(RUNTIME_VERBS, [*argv, "--launcher", "env", "--", "true"]) == 0
    assert "1 x gpu: 4 GPUs per node, 16 cores per rank; 4 ranks" in capsys.readouterr().out


# --- Neuron


def test_neuron_is_never_asked_for_memory() -> None:
    own = site("neuron")
    cluster = describe_cluster(own)
    parts = tuple(dataclasses.replace(part, memory=1_000_000) for part in cluster.partitions)
    cluster = dataclasses.replace(cluster, partitions=parts, memory_is_consumable=True)
    planned = a_plan(site=own, facts=some_facts(cluster=cluster), job=a_job(launcher="env"), gpus_per_node=1)
    assert planned.size.memory is None
    assert "--mem" not in directives(planned)


def test_interactive_jobs_of_neuron_end_at_8_hours() -> None:
    shell = {"interactive": True, "ranks_per_node": 1, "gpus_per_node": 1}
    assert plan("neuron", time="8:00:00", **shell).size.time_limit == 480
    assert "(interactive jobs) allows 08:00:00" in refusal("neuron", time="9:00:00", **shell)
    assert plan("neuron", time="48:00:00").size.time_limit == 2880


@pytest.mark.parametrize(
    ("partition", "running", "submitted"), [("amd_a100nv_8", 2, 3), ("eme_h200nv_8", 2, 3), ("gh200_1", 1, 2)]
)
def test_limits_of_jobs_are_shown(partition: str, running: int, submitted: int) -> None:
    jobs = "job" if running == 1 else "jobs"
    line = f"partition {partition}: {running} {jobs} of yours can run at a time, {submitted} can run or wait"
    assert notes(plan("neuron", partition=partition)) == (line,)


@pytest.mark.parametrize(("arch", "on_arm"), [("amd64", False), ("arm64", True), ("", False)])
@pytest.mark.parametrize("gpus", [1, "auto"])
def test_the_choice_of_a_partition_respects_the_architecture(arch: str, on_arm: bool, gpus: Any) -> None:
    own = site("neuron")
    image = an_image(arch=arch).manifest
    chosen = sizing.fit(SizeRequest(gpus_per_node=gpus), describe_cluster(own), own, lambda: image)
    assert (chosen.partition == "gh200_1") is on_arm


# --- Slingshot


@pytest.mark.parametrize("name", SLINGSHOT)
def test_the_network_of_slingshot_is_forced_on_several_nodes_only(name: str) -> None:
    one, two = (plan(name, nodes=nodes).environment.variables for nodes in (1, 2))
    assert not [variable for variable in one if variable.startswith("NCCL_NET")]
    assert two["NCCL_NET"] == "AWS Libfabric"


@pytest.mark.parametrize("name", SLINGSHOT)
def test_ll128_is_off_from_nccl_2_27_on(name: str) -> None:
    new, old, unknown = {**OPEN_MPI, "nccl": "2.27.3"}, OPEN_MPI, {**OPEN_MPI, "nccl": ""}
    values = [
        plan(name, software=each, nodes=2).environment.variables.get("NCCL_PROTO") for each in (new, old, unknown)
    ]
    assert values == ["^LL128", None, None]
    assert [any("NCCL_PROTO" in note for note in notes(plan(name, nodes=2), each)) for each in (new, old, unknown)] == [
        *(False, False),
        True,
    ]


def test_who_has_switched_the_plugin_off_still_has_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file of the time when polaris had NCCL_NET in `env`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "ctrain/sites/polaris.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("env: {NCCL_NET: null, NCCL_CROSS_NIC: '2'}\n")
    monkeypatch.setitem(globals(), "site", lambda name: load_site(name)[0])  # not as other tests have read it
    environment = plan("polaris", nodes=2).environment.variables
    assert "NCCL_NET" not in environment
    assert (environment["NCCL_CROSS_NIC"], environment["NCCL_COLLNET_ENABLE"]) == ("2", "1")
