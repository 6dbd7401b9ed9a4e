from __future__ import annotations

import getpass
import grp
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.base.time_limit import NodeRange
from ctrain_runtime.cluster.model import Allocation, Node, Partition
from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.schedulers.pbs import client, facts
from ctrain_runtime.site.model import Site
from samples.programs import answer
from samples.recordings import install_pbs, pbs, pbs_errors, pbs_jobs

SITE = Site(name="generic-pbs", scheduler="pbs", mpi=("pals", "hydra", "pmix"))
MEMORY = 24684084 >> 10
ALLOCATION = Allocation("21.login01", 2, "workq", cpus=2, gpus=2, minutes_left=5)


def hosts(name: str = "nodes.out") -> tuple[Node, ...]:
    return facts.parse_hosts(client.parse(pbs(name), "nodes"))


def queues(**changes: Any) -> tuple[Partition, ...]:
    parsed = client.parse(pbs("queues.out"), "Queue")
    parsed["workq"].update(changes)
    return facts.parse_queues(parsed, hosts(), client.parse(pbs("server.out"), "Server"))


@pytest.fixture
def cluster(programs: Path) -> Path:
    """The commands of the recorded cluster."""
    return install_pbs(programs)


@pytest.mark.usefixtures("cluster")
def test_the_recorded_cluster() -> None:
    found = facts.read_cluster(SITE)
    workq = Partition("workq", True, nodes=2, cpus=2, gpus=2, time_limit=60, memory=MEMORY, idle=0)
    gpu = Partition("gpu", False, nodes=2, cpus=2, gpus=2, time_limit=120, memory=MEMORY, idle=0)
    assert tuple(replace(part, groups=(), others=()) for part in found.partitions) == (workq, gpu)
    (group,) = found.partitions[0].groups
    assert (group.names, group.features) == (("pbs01", "pbs02"), {"arch=linux"})
    assert {part.name: part.closed for part in found.closed} == {"closed": "disabled", "stopped": "stopped"}
    assert (found.mpi, found.allocation, found.memory_is_consumable) == (("pals",), None, True)


def test_hydra_is_told_from_other_mpiexecs(cluster: Path) -> None:
    answer(cluster, "mpiexec", "HYDRA build details:\n    Version: 4.0.2\n")
    assert facts.read_cluster(SITE).mpi == ("pals", "hydra")
    answer(cluster, "mpiexec", "mpiexec (OpenRTE) 4.1.4\n")
    assert facts.read_cluster(SITE).mpi == ("pals",)


def test_nodes_that_are_down_or_offline_do_not_count() -> None:
    assert [host.unavailable for host in hosts()] == ["", ""]  # in use
    assert [host.unavailable for host in hosts("nodes-down.out")] == ["", "down"]
    assert [host.unavailable for host in hosts("nodes-offline.out")] == ["", "offline"]
    states = {"a": "job-busy,maintenance", "b": "resv-exclusive", "c": "stale,down", "d": "job-exclusive"}
    parsed = facts.parse_hosts({name: {"state": state} for name, state in states.items()})
    assert [host.unavailable for host in parsed] == ["in maintenance", "reserved", "down", ""]


def test_idle_nodes() -> None:
    assert [host.idle for host in hosts("nodes-offline.out")] == [True, False]
    assert [host.idle for host in hosts()] == [False, False]
    partly = {"a": {"state": "free", "jobs": ["1.s"]}, "b": {"state": "free"}}
    assert [host.idle for host in facts.parse_hosts(partly)] == [False, True]


def test_vnodes_of_a_host_are_summed() -> None:
    def vnode(name: str, **resources: Any) -> dict[str, Any]:
        return {"state": "free", "resources_available": {"host": "x1", "vnode": name, **resources}}

    parsed = {
        "x1": vnode("x1", ncpus=0),
        "x1[0]": vnode("x1[0]", ncpus=32, ngpus="2", mem="256gb", accelerator_model="A100"),
        "x1[1]": vnode("x1[1]", ncpus=32, ngpus="2", mem="256gb"),
    }
    assert facts.parse_hosts(parsed) == (Node((), True, 64, 4, "A100", memory=512 << 10, name="x1"),)
    parsed["x1[1]"]["state"] = "offline,job-busy"
    assert facts.parse_hosts(parsed)[0].unavailable == "offline"
    assert facts.parse_hosts({"x2": {}})[0].unavailable == "down"


def test_what_chunks_can_select_a_host_by() -> None:
    """Resources that all its vnodes with CPUs share, and that are no amount."""
    shared = {"ncpus": 8, "ngpus": 4, "gpu_type": "a100", "tier0": "x3101-g0", "mem": "1gb", "slots": "7", "a": "x,y"}
    parsed = {
        "x1": {"resources_available": {"host": "x1", "ncpus": 0}},
        "x1[0]": {"resources_available": {"host": "x1", "vnode": "x1[0]", "half": "left", **shared}},
        "x1[1]": {"resources_available": {"host": "x1", "vnode": "x1[1]", "half": "right", **shared}},
    }
    assert facts.parse_hosts(parsed)[0].features == {"gpu_type=a100", "tier0=x3101-g0"}


def test_nodes_of_queues() -> None:
    def host(queue: str, gpus: int, **changes: Any) -> Node:
        return Node((queue,) if queue else (), **{"idle": True, "cpus": 8, "gpus": gpus, **changes})

    up = {"enabled": "True", "started": "True"}
    parsed = {"own": dict(up), "route": {**up, "route_destinations": "own,x"}, "rest": dict(up)}
    everything = (host("own", 0), host("", 4, cpus=16), host("", 4, unavailable="down", cpus=16), host("", 0))
    own, route, rest = facts.parse_queues(parsed, everything, {"s": {}})
    assert (own.nodes, own.gpus) == (route.nodes, route.gpus) == (1, 0)
    assert (rest.nodes, rest.existing, rest.gpus, rest.cpus) == (1, 2, 4, 16)  # those with GPUs
    assert [(one.nodes, one.gpus) for one in rest.others] == [(1, 0)]


def test_a_routing_queue_has_the_widest_limits_of_its_destinations() -> None:
    """As at ALCF: prod, with small and large, which take no jobs of users directly."""
    up = {"enabled": "True", "started": "True"}
    small = {
        **up,
        "from_route_only": "True",
        "resources_min": {"nodect": 10},
        "resources_max": {"nodect": 24, "walltime": "03:00:00"},
    }
    large = {
        **small,
        "resources_min": {"nodect": 100},
        "resources_max": {"nodect": 496, "walltime": "24:00:00", "ngpus": 99},
    }
    prod = {
        **up,
        "queue_type": "Route",
        "route_destinations": "small,large,else@where",
        "resources_max": {"walltime": "12:00:00"},
    }
    parsed = {"prod": prod, "small": small, "large": large}
    parts = {part.name: part for part in facts.parse_queues(parsed, hosts(), {"s": {}})}
    assert (parts["prod"].min_nodes, parts["prod"].max_nodes, parts["prod"].time_limit) == (10, 496, 720)
    assert (parts["prod"].closed, parts["prod"].max_gpus, parts["large"].max_gpus) == ("", None, 99)
    assert parts["prod"].by_nodes == (NodeRange(10, 24, 180), NodeRange(100, 496, 1440))
    assert parts["small"].closed == "reached only through other queues"
    others = {**parsed, "large": {**large, "acl_user_enable": "True", "acl_users": "other"}}
    assert facts.parse_queues(others, hosts(), {"s": {}})[0].by_nodes == (NodeRange(10, 24, 180),)
    parsed["small"]["resources_max"] = {}
    (endless, *_) = facts.parse_queues({**parsed, "prod": {**prod, "resources_max": {}}}, hosts(), {"s": {}})
    assert (endless.max_nodes, endless.time_limit) == (None, None)


ME, GROUP = getpass.getuser(), grp.getgrgid(os.getgid()).gr_name


@pytest.mark.parametrize(
    ("acl", "closed"),
    [
        ({"acl_user_enable": "True", "acl_users": f"other,{ME}@*.cluster"}, ""),
        ({"acl_user_enable": "True", "acl_users": f"-{ME},+"}, f"closed to {ME}"),
        ({"acl_user_enable": "True", "acl_users": "-other,+"}, ""),
        ({"acl_user_enable": "True", "acl_users": f"-{ME}@login7,+"}, ""),  # perhaps not from here
        ({"acl_user_enable": "True", "acl_users": f"{ME}x,x{ME}"}, f"closed to {ME}"),
        ({"acl_user_enable": "True"}, f"closed to {ME}"),
        ({"acl_user_enable": "False", "acl_users": "other"}, ""),
        ({"acl_group_enable": "True", "acl_groups": f"physics, {GROUP}"}, ""),
        ({"acl_group_enable": "True", "acl_groups": f"{GROUP}-x"}, f"closed to the groups of {ME}"),
        ({"started": "False"}, "stopped"),
    ],
)
def test_queues_that_are_closed_to_the_caller(acl: dict[str, str], closed: str) -> None:
    assert queues(**acl)[0].closed == closed


def test_limits_of_queues_and_of_the_server() -> None:
    assert queues(resources_max={"nodect": 10, "walltime": "48:00:00"})[0].max_nodes == 10
    assert queues(resources_max={"walltime": "00:01:30"})[0].time_limit == 2
    assert queues(resources_max={"walltime": "100:00:00"})[0].time_limit == 6000
    assert queues(resources_max={})[0].time_limit is None
    assert queues(default_chunk={"mem": "1gb"})[0].has_memory_default
    assert not queues()[0].has_memory_default


def test_the_least_time_of_a_queue() -> None:
    assert queues(resources_min={"walltime": "00:05:00"})[0].min_time == 5
    assert queues()[0].min_time == 0


def test_gpus_of_a_server_that_is_stopped(programs: Path) -> None:
    for name, key in (("qstat", "qstat-server-stopped"), ("pbsnodes", "pbsnodes-server-stopped")):
        code, error = pbs_errors()[key]
        answer(programs, name, "{}", error=error, code=code)
    with pytest.raises(SchedulerError, match=r"^PBS does not answer: Connection refused; cannot connect to server"):
        facts.read_cluster(SITE)


def test_commands_that_are_not_on_path(programs: Path) -> None:
    answer(programs, "pbsnodes", pbs("nodes.out"))
    with pytest.raises(SchedulerError, match=r"^PBS command qstat not found on PATH\. Load PBS's module, or run here"):
        facts.read_cluster(SITE)


# --- the allocation


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodefile").write_text("pbs01\npbs02\n")
    monkeypatch.setenv("PBS_JOBID", "21.login01")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodefile"))


@pytest.mark.usefixtures("cluster", "inside")
def test_the_cluster_from_inside_an_allocation() -> None:
    assert facts.read_cluster(SITE).allocation == ALLOCATION


def test_of_unequal_nodes_the_smallest_counts() -> None:
    vnodes = "(a:ncpus=4:ngpus=1:mem=2097152kb+a2:ncpus=4:ngpus=1:mem=1gb)+(b:ncpus=3:mem=8gb)+(b:ncpus=2:ngpus=1)"
    record = {"exec_host": "a/0*8+b/0*3+b/1*2", "exec_vnode": vnodes, "queue": "q"}
    assert facts.parse_allocation("7", record) == Allocation("7", 2, "q", cpus=5, gpus=1, memory=3072)


def test_the_time_that_is_left() -> None:
    record = {"Resource_List": {"walltime": "02:00:00"}, "resources_used": {"walltime": "00:30:01"}}
    assert facts.parse_allocation("7", record).minutes_left == 89
    record["resources_used"]["walltime"] = "02:00:10"
    assert facts.parse_allocation("7", record).minutes_left == 0


@pytest.mark.usefixtures("inside")
def test_allocations_that_are_gone(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, message in (
        ("qstat-unknown-id-xf-json", r"^PBS_JOBID is 21\.login01: job not found\. Leave this shell"),
        ("qstat-server-stopped", r"^cannot look up job 21\.login01 \(PBS_JOBID\): Connection refused; cannot"),
    ):
        code, error = pbs_errors()[name]
        answer(programs, "qstat", "{}", error=error, code=code)
        with pytest.raises(SchedulerError, match=message):
            facts.read_allocation()
    answer(programs, "qstat", pbs_jobs()["F-ok"])
    with pytest.raises(SchedulerError, match=r"^PBS_JOBID is 21\.login01: job is not running \(F\)"):
        facts.read_allocation()
    monkeypatch.delenv("PBS_NODEFILE")
    with pytest.raises(SchedulerError, match=r"but PBS_NODEFILE names no file here\. Leave this shell"):
        facts.read_allocation()


@pytest.mark.usefixtures("programs")
def test_without_an_allocation_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PBS_JOBID", raising=False)
    assert facts.read_allocation() is None


def test_what_is_not_a_number_is_none() -> None:
    assert [client.read_count(value) for value in (2, "2", None, "many", True, -1, "9" * 30)] == [2, 2, 0, 0, 0, 0, 0]
    sizes = ("24684084kb", "500gb", "1048576", "1TB", "1024mw", "", None)
    assert [client.read_megabytes(size) for size in sizes] == [24105, 512000, 1, 1 << 20, 0, 0, 0]
    assert json.loads("{}") == client.parse("Welcome!\n{}", "Jobs")


ODD: tuple[Any, ...] = ("x", 7, [1], None, {"nodect": "many", "walltime": "1:xx:00", "mem": [1]})


@pytest.mark.parametrize("odd", ODD)
def test_answers_of_another_form_end_in_no_traceback(odd: Any) -> None:
    """A queue whose resources_max was text ended ctrain with a TypeError."""
    names = ("resources_max", "resources_min", "default_chunk", "resources_available")
    described = dict.fromkeys(names, odd)
    queue = {**described, "queue_type": odd, "route_destinations": odd, "acl_users": odd, "enabled": "True"}
    read = facts.parse_hosts({"n1": {**described, "state": odd, "queue": odd}})
    part, *_ = facts.parse_queues({"prod": queue}, read, {"pbs": {**described, "default_queue": odd}})
    assert (part.name, part.cpus, part.max_nodes, part.time_limit) == ("prod", 0, None, None)
    assert client.parse(json.dumps({"Queue": odd}), "Queue") == {}
