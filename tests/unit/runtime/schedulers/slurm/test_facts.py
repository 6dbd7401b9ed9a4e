from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.cluster.model import Access, Limits, Node, NodeGroup, Partition
from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.schedulers.slurm import facts
from ctrain_runtime.schedulers.slurm.facts import parse_node_state, parse_nodes, parse_partitions
from samples import programs as fakes
from samples.programs import answer, write_program
from samples.recordings import VERSIONS, install_cluster, record, recorded

GPU_NODE = Node(
    partitions=("gpu",),
    idle=True,
    cpus=64,
    threads_per_core=2,
    memory=500_000,
    gpus=8,
    gpu_type="a100",
    arch="x86_64",
)
RECORDED_PARTITION = Partition(
    name="amd_a100nv_8",
    default=True,
    nodes=2,
    cpus=8,
    gpus=8,
    gpu_type="a100",
    time_limit=2880,
    threads_per_core=1,
    memory=8000,
    arch="x86_64",
    idle=2,
)


def plain(part: Partition) -> Partition:
    """Without the groups of its nodes."""
    return dataclasses.replace(part, groups=(), others=())


def node_line(**changes: str) -> str:
    fields = {
        "NodeName": "n1",
        "Arch": "x86_64",
        "CoresPerSocket": "32 ",
        "CPUAlloc": "0",
        "CPUTot": "128",
        "Gres": "gpu:a100:8(S:0-1)",
        "OS": "Linux 6.1 #1 SMP @0 ",
        "RealMemory": "512000",
        "Sockets": "2",
        "State": "IDLE",
        "ThreadsPerCore": "2",
        "Partitions": "gpu ",
    }
    return " ".join(f"{name}={value}" for name, value in {**fields, **changes}.items())


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_cluster(programs: Path, version: str) -> None:
    install_cluster(programs, version)
    cluster = facts.read_cluster()
    assert tuple(map(plain, cluster.partitions)) == (RECORDED_PARTITION,)
    (group,) = cluster.partitions[0].groups
    assert group == NodeGroup(8, 8, "a100", 1, 8000, "x86_64", names=group.names, nodes=2, idle=2)
    assert set(group.names) == cluster.members["amd_a100nv_8"]
    assert (cluster.allocation, cluster.memory_is_consumable) == (None, False)
    assert facts.read_gpus() == ("a100",)


def test_few_requests_reach_the_controller(programs: Path) -> None:
    calls = install_cluster(programs, "24.11.5")
    facts.read_cluster()
    lines = sorted(calls["scontrol"].read_text().splitlines())
    assert lines == ["--oneliner show node", "--oneliner show partition", "show config"]


def test_the_invented_cluster_of_other_tests(programs: Path) -> None:
    gpu = dataclasses.replace(RECORDED_PARTITION, name="gpu")
    cpu = Partition("cpu", default=False, nodes=1, cpus=4, gpus=0, idle=1)
    fakes.slurm(programs, gpu, cpu)
    assert tuple(map(plain, facts.read_cluster().partitions)) == (gpu, cpu)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_mpi_plugins(version: str) -> None:
    expected = {
        "22.05.8": {"pmix", "none", "cray_shasta", "pmi2", "pmix_v4"},
        "24.11.5": {"pmix", "none", "cray_shasta", "pmi2", "pmix_v5"},
        "26.05.5": {"none", "cray_shasta", "pmi2"},
    }
    plugins = facts.parse_mpi_list(record(version, "mpi-list.out"))
    assert set(plugins) == expected[version]
    assert len(plugins) == len(set(plugins))


@pytest.mark.parametrize("program", facts.COMMANDS)
def test_a_command_that_is_not_on_path(programs: Path, program: str) -> None:
    install_cluster(programs, "24.11.5")
    (programs / program).unlink()
    expected = rf"^Slurm command {program} not found on PATH. Load Slurm's module, or run here with --site local$"
    with pytest.raises(SchedulerError, match=expected):
        facts.read_cluster()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_controller_that_is_dead(programs: Path, version: str) -> None:
    install_cluster(programs, version)
    answer(programs, "scontrol", error=record(version, "dead-scontrol-show-job-1.err"), code=1)
    expected = (
        "Slurm does not answer: slurm_load_jobs error: Unable to contact slurm controller "
        "(connect failure). Retry later, or run here with --site local"
    )
    with pytest.raises(SchedulerError, match=f"^{re.escape(expected)}$"):
        facts.read_cluster()


def test_a_command_that_cannot_start(programs: Path) -> None:
    install_cluster(programs, "24.11.5")
    write_program(programs / "srun", "no interpreter\n")
    with pytest.raises(SchedulerError, match=r"^Slurm does not answer: srun cannot be started: Exec format error"):
        facts.read_cluster()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_in_many_lines(version: str) -> None:
    (node,) = parse_nodes(record(version, "show-node-busy.out"))
    assert (node.unavailable, node.cpus, node.gpus, node.memory) == ("", 8, 8, 8000)
    assert node.partitions == ("amd_a100nv_8",)


@pytest.mark.parametrize("version", recorded("drain.show-node.out"))
@pytest.mark.parametrize("state", ["drain", "down"])
def test_nodes_that_cannot_be_used(version: str, state: str) -> None:
    (node,) = parse_nodes(record(version, f"{state}.show-node.out"))
    reason = {"drain": "drained", "down": "down"}[state]
    assert node.unavailable == reason
    (partition,) = parse_partitions(
        record(version, "show-partition.out"), [node, dataclasses.replace(node, unavailable="")]
    )
    assert (partition.nodes, partition.cpus, partition.unavailable, partition.existing) == (1, 8, (reason,), 2)


@pytest.mark.parametrize(
    ("state", "unavailable"),
    [
        ("IDLE", ""),
        ("IDLE+CLOUD+POWERED_DOWN", ""),
        ("IDLE~", ""),
        ("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", ""),
        ("IDLE+POWERING_DOWN", ""),
        ("idle%", ""),
        ("MIXED", ""),
        ("mix-", ""),
        ("ALLOCATED+COMPLETING", ""),
        ("IDLE+PLANNED", ""),
        ("IDLE+REBOOT_REQUESTED", ""),
        ("IDLE+RESERVED", "reserved"),
        ("IDLE+DRAIN", "drained"),
        ("MIXED+DRAIN", "drained"),
        ("IDLE*", "down"),
        ("DOWN*+DRAIN", "drained"),
        ("DOWN+NOT_RESPONDING", "down"),
        ("DOWN+CLOUD+POWERED_DOWN", "down"),
        ("IDLE+PLANNED+MAINT", "in maintenance"),
        ("IDLE+MAINT+RESERVED", "in maintenance"),
        ("idle$", "in maintenance"),
        ("ALLOCATED+FAIL", "failing"),
        ("UNKNOWN", "not registered"),
        ("IDLE+INVALID_REG", "not registered"),
    ],
)
def test_states_of_nodes(state: str, unavailable: str) -> None:
    (node,) = parse_nodes(node_line(State=state))
    assert node.unavailable == unavailable


def test_nodes_of_the_future_do_not_exist() -> None:
    assert parse_nodes(node_line(State="FUTURE")) == ()


@pytest.mark.parametrize(
    ("state", "idle"),
    [
        ("IDLE", True),
        ("IDLE~", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE+PLANNED", False),  # for another job
        ("IDLE+RESERVED", False),
        ("IDLE+COMPLETING", False),
        ("IDLE+DRAIN", False),
        ("IDLE*", False),
        ("MIXED", False),
        ("ALLOCATED", False),
        ("DOWN", False),
    ],
)
def test_nodes_that_are_free_now(state: str, idle: bool) -> None:
    (node,) = parse_nodes(node_line(State=state))
    assert node.idle == idle


def test_marks_of_states() -> None:
    assert parse_node_state("DOWN*+DRAIN") == {"DOWN", "NOT_RESPONDING", "DRAIN"}
    assert parse_node_state("mix-") == {"MIX"}


@pytest.mark.parametrize(
    ("changes", "cpus", "threads"),
    [
        ({}, 128, 2),
        ({"CPUEfctv": "124", "CoreSpecCount": "2"}, 124, 2),
        ({"CoreSpecCount": "2", "CPUSpecList": "62-63"}, 124, 2),
        ({"CPUTot": "64"}, 64, 1),  # CPUs= of slurm.conf counts cores
        ({"CPUTot": "8", "Sockets": "", "CoresPerSocket": "", "ThreadsPerCore": "1"}, 8, 1),
    ],
)
def test_cpus_that_jobs_can_have(changes: dict[str, str], cpus: int, threads: int) -> None:
    (node,) = parse_nodes(node_line(**changes))
    assert (node.cpus, node.threads_per_core) == (cpus, threads)


def test_memory_that_is_reserved_for_the_system() -> None:
    (node,) = parse_nodes(node_line(MemSpecLimit="12000"))
    assert node.memory == 500_000


def test_what_an_administrator_wrote_is_no_field() -> None:
    (node,) = parse_nodes(node_line(Reason="bad board MemSpecLimit=511999 State=DOWN", Comment="CoreSpecCount=60"))
    assert (node.memory, node.unavailable, node.cpus) == (512_000, "", 128)


def partition_line(**changes: str) -> str:
    fields = {"PartitionName": "gpu", "Default": "NO", "MaxNodes": "UNLIMITED", "MaxTime": "UNLIMITED", "State": "UP"}
    return " ".join(f"{name}={value}" for name, value in {**fields, **changes}.items())


def node(name: str, **changes: Any) -> Node:
    return dataclasses.replace(GPU_NODE, **{"name": name, **changes})


def test_the_nodes_of_a_partition_are_in_groups_of_one_shape() -> None:
    """It was as small as its smallest node: one CPU node among GPU nodes, and nobody got GPUs."""
    nodes = [
        *(node(f"a{number}", features=frozenset({"a100"})) for number in range(3)),
        node("a3", unavailable="drained", idle=False, features=frozenset({"a100"})),
        node("v1", gpus=4, gpu_type="v100", cpus=32, memory=200_000),
        node("c1", gpus=0, gpu_type="", cpus=40),
        node("x1", partitions=("cpu",), gpus=0),
    ]
    (partition,) = parse_partitions(partition_line(MaxTime="1-00:00:00"), nodes)
    assert plain(partition) == Partition(
        name="gpu",
        default=False,
        nodes=3,
        cpus=64,
        gpus=8,
        gpu_type="a100",
        time_limit=1440,
        threads_per_core=2,
        memory=500_000,
        arch="x86_64",
        idle=3,
        unavailable=("drained",),
    )
    (group,) = partition.groups
    assert (group.names, group.nodes, group.features) == (("a0", "a1", "a2", "a3"), 3, {"a100"})
    assert [(one.names, one.gpus, one.cpus) for one in partition.others] == [(("v1",), 4, 32), (("c1",), 0, 40)]


def test_features_and_limits_of_nodes() -> None:
    (parsed,) = parse_nodes(node_line(ActiveFeatures="a100,nvlink", AvailableFeatures="a100,nvlink,big"))
    assert parsed.features == {"a100", "nvlink"}
    (parsed,) = parse_nodes(node_line(ActiveFeatures="(null)"))
    assert parsed.features == frozenset()
    (partition,) = parse_partitions(partition_line(MaxCPUsPerNode="16"), [node("a", cpus=8), node("b"), node("c")])
    assert [one.cpus for one in (*partition.groups, *partition.others)] == [16, 8]


def test_a_node_that_was_never_started_has_the_architecture_of_the_others() -> None:
    """Slurm shows none for nodes of a cloud before their first boot."""
    (partition,) = parse_partitions(partition_line(), [node("a"), node("cloud", arch="")])
    assert (partition.nodes, partition.arch, partition.others) == (2, "x86_64", ())


def test_a_partition_whose_nodes_are_all_down_shows_what_they_are() -> None:
    down = dataclasses.replace(GPU_NODE, unavailable="down", idle=False)
    (partition,) = parse_partitions(partition_line(), [down])
    assert (partition.nodes, partition.existing, partition.gpus, partition.cpus) == (0, 1, 8, 64)
    (empty,) = parse_partitions(partition_line(), [])
    assert (empty.nodes, empty.cpus, empty.gpus, empty.arch) == (0, 0, 0, "")


@pytest.mark.parametrize(
    ("state", "closed"), [("UP", ""), ("DOWN", "down"), ("DRAIN", "drained"), ("INACTIVE", "inactive"), ("", "closed")]
)
def test_partitions_that_take_no_jobs(programs: Path, state: str, closed: str) -> None:
    (partition,) = parse_partitions(partition_line(State=state), [GPU_NODE])
    assert partition.closed == closed
    install_cluster(programs, "24.11.5")
    fakes.scontrol(programs, partition=partition_line(State=state), node=node_line())
    cluster = facts.read_cluster()
    assert (bool(cluster.partitions), bool(cluster.closed)) == (not closed, bool(closed))
    assert facts.read_gpus() == (() if closed else ("a100",))


def test_limits_of_a_partition() -> None:
    limits = {"MinNodes": "2", "MaxNodes": "4", "MaxCPUsPerNode": "16", "MaxMemPerNode": "1000", "MaxTime": "30:00"}
    (partition,) = parse_partitions(partition_line(**limits, QoS="gpu"), [GPU_NODE])
    assert (partition.min_nodes, partition.max_nodes, partition.own_qos) == (2, 4, "gpu")
    assert (partition.cpus, partition.memory, partition.time_limit) == (16, 1000, 30)
    (partition,) = parse_partitions(partition_line(MinNodes="0", QoS="N/A"), [GPU_NODE])
    assert (partition.min_nodes, partition.max_nodes, partition.own_qos) == (1, None, "")


def test_who_may_use_a_partition() -> None:
    def partition(**fields: str) -> Partition:
        (parsed,) = parse_partitions(partition_line(**fields), [GPU_NODE])
        return parsed

    everybody = partition(AllowAccounts="ALL", AllowQos="ALL")
    assert (everybody.accounts, everybody.qos) == (Access(), Access())
    assert partition(AllowAccounts="ai,bio", DenyQos="long").accounts == Access(allowed=("ai", "bio"))
    assert partition(DenyAccounts="bio", AllowQos="long,normal").qos == Access(allowed=("long", "normal"))
    assert partition(DenyAccounts="bio").accounts == Access(denied=("bio",))


@pytest.mark.parametrize(
    ("preempt_type", "mode", "preemptible"),
    [
        ("preempt/partition_prio", "CANCEL", True),
        ("preempt/partition_prio", "REQUEUE", True),
        ("preempt/partition_prio", "OFF", False),
        ("preempt/qos", "CANCEL", False),  # the mode is then the cluster's, for all partitions
        ("preempt/none", "CANCEL", False),
    ],
)
def test_partitions_whose_jobs_make_way(preempt_type: str, mode: str, preemptible: bool) -> None:
    text = "\n".join(
        partition_line(PartitionName=name, PriorityTier=tier, PreemptMode=mode)
        for name, tier in (("spot", "1"), ("gpu", "10"))
    )
    spot, gpu = parse_partitions(text, [GPU_NODE], {"PreemptType": preempt_type})
    assert (spot.preemptible, gpu.preemptible) == (preemptible, False)


# The output of sacctmgr 22.05.8 for a user of two accounts, whose default is ai; and of `show qos`.
ASSOCIATIONS = (
    "ctrain|ai|bio|normal|long||||\nctrain|ai|ai|long,normal|||12:00:00|cpu=64,node=3|\nctrain|ai|ai|long||gpu|1:00||\n"
)
QOS = """\
normal|||||
short|OverPartQOS|00:30:00|gres/gpu=4,node=2|gres/gpu=8|node=16
long|DenyOnLimit|2-00:00:00|gres/gpu:a100=1||node=16
"""


@pytest.mark.parametrize(
    ("text", "defaults"),
    [
        (ASSOCIATIONS, ("ai", "normal")),
        ("ctrain|bio|bio|normal|long\n", ("bio", "long")),
        ("ctrain|bio|bio|fast,long|\n", ("bio", "")),
        ("other|bio|bio|normal|\n", ("", "")),  # of another cluster
        ("", ("", "")),
        ("sacctmgr: banner\n|||\n", ("", "")),
    ],
)
def test_the_accounts_of_a_user(text: str, defaults: tuple[str, str]) -> None:
    assert facts.parse_user(text, "ctrain") == defaults


def test_accounting_is_asked_but_not_needed(programs: Path) -> None:
    install_cluster(programs, "24.11.5")
    calls = answer(programs, "sacctmgr", ASSOCIATIONS)
    assert (facts.read_cluster().account, facts.read_cluster().qos) == ("", "")
    assert not calls.exists()  # no partition restricts accounts or QOS
    fakes.scontrol(programs, config="ClusterName = ctrain\n", partition=partition_line(AllowQos="normal"))
    assert (facts.read_cluster().account, facts.read_cluster().qos) == ("ai", "normal")
    assert "--readonly show user" in calls.read_text()
    answer(programs, "sacctmgr", error="sacctmgr: error: Problem talking to the database: Connection refused", code=1)
    assert facts.read_cluster().account == ""


def test_limits_of_accounts_and_qos(programs: Path) -> None:
    install_cluster(programs, "24.11.5")
    script = f"#!/bin/bash\ncase $* in *' user '*) printf %s '{ASSOCIATIONS}';; *) printf %s '{QOS}';; esac\n"
    write_program(programs / "sacctmgr", script)
    config = "ClusterName = ctrain\nAccountingStorageEnforce = associations,{}qos\n"
    fakes.scontrol(programs, config=config.format("limits,"), partition=partition_line(), node=node_line())
    cluster = facts.read_cluster()
    assert (cluster.account, cluster.qos) == ("ai", "normal")
    assert cluster.limits == {
        "QOS normal": Limits(),
        "QOS short": Limits(2, 4, 30, overrides=True),
        "QOS long": Limits(16, None, 2880),
        "account bio": Limits(),
        "account ai": Limits(3, None, 720),  # those of a partition alone are not for all
    }
    assert cluster.members == {"gpu": {"n1"}}
    fakes.scontrol(programs, config=config.format(""), partition=partition_line(), node=node_line())
    assert facts.read_cluster().limits == {}  # not enforced
    fakes.scontrol(programs, config=config.format("safe,"), partition=partition_line(), node=node_line())
    answer(programs, "sacctmgr", error="sacctmgr: error: Problem talking to the database: Connection refused", code=1)
    assert facts.read_cluster().limits == {}


@pytest.mark.parametrize(
    ("changes", "has_default"),
    [
        ({"DefMemPerNode": "UNLIMITED"}, False),
        ({"DefMemPerNode": "64000"}, True),
        ({"DefMemPerCPU": "2000"}, True),
        ({"JobDefaults": "DefCpuPerGPU=8,DefMemPerGPU=60000"}, True),
        ({"JobDefaults": "(null)"}, False),
    ],
)
def test_defaults_for_memory(changes: dict[str, str], has_default: bool) -> None:
    (partition,) = parse_partitions(partition_line(**changes), [GPU_NODE])
    assert partition.has_memory_default is has_default


def test_memory_as_a_consumable(programs: Path) -> None:
    config = "SLURM_VERSION           = 24.11.5\nSelectTypeParameters    = CR_CORE_MEMORY\n"
    install_cluster(programs, "24.11.5", config=config + "DefMemPerNode = UNLIMITED\n")
    cluster = facts.read_cluster()
    assert (cluster.memory_is_consumable, cluster.partitions[0].has_memory_default) == (True, False)
    install_cluster(programs, "24.11.5", config=config + "DefMemPerCPU = 2000\n")
    cluster = facts.read_cluster()
    assert (cluster.memory_is_consumable, cluster.partitions[0].has_memory_default) == (True, True)


WORDS = st.sampled_from(
    ["NodeName=", "PartitionName=", "State=", "UP", "IDLE", "CPUTot=", "Gres=", "gpu:", "MaxTime=", "9", " ", "\n", "="]
)


@given(st.text() | st.lists(WORDS | st.text(max_size=3)).map("".join))
def test_any_text_is_survived(text: str) -> None:
    try:
        nodes = parse_nodes(text)
        parse_partitions(text, nodes)
        facts.parse_config(text)
        facts.parse_mpi_list(text)
    except CtrainError:
        pass


@pytest.mark.parametrize(
    ("plugins", "partition", "node", "expected"),
    [
        ("task/affinity,task/cgroup", "", "", "cores"),
        ("task/cgroup", "", "", ""),
        ("", "", "", ""),
        ("task/affinity", " CpuBind=none", "", ""),
        ("task/affinity", "", " CpuBind=sockets", ""),
    ],
)
def test_ranks_are_bound_where_slurm_can_and_nobody_has_another_policy(
    plugins: str, partition: str, node: str, expected: str
) -> None:
    nodes = parse_nodes(f"NodeName=a Arch=x86_64 CPUTot=8 State=IDLE Partitions=p{node}\n")
    (found,) = parse_partitions(f"PartitionName=p{partition} Default=YES State=UP\n", nodes, {"TaskPlugin": plugins})
    assert found.cpu_bind == expected
