"""The profiles of Frontier, LUMI-G, Leonardo and Snellius, as their documentation describes them: sites/sources/."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ctrain_runtime.errors import ResourceError
from ctrain_runtime.plan import site_notes
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.preflight import plan_preflight
from ctrain_runtime.run import site_engine
from ctrain_runtime.run.targets import describe_cluster
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import load_site
from samples.plans import ENGINE, a_job, a_launch, a_plan, an_image, some_facts

ROCM = {"torch": "2.9.1", "rocm": "6.4.2"}
AMD_ORDER = (4, 5, 2, 3, 6, 7, 0, 1)


@functools.cache
def site(name: str) -> Site:
    return load_site(name)[0]


def plan(name: str, **options: Any) -> LaunchPlan:
    own = site(name)
    engine = site_engine.find(own)[0] if own.engine.path else ENGINE
    settings = {**dict.fromkeys(own.required, "mine"), **options.pop("settings", {})}
    image = {"image": an_image(software=ROCM)} if own.gpu_order else {}
    facts = some_facts(cluster=describe_cluster(own), engine=engine)
    return a_plan(site=own, facts=facts, job=a_job(launcher="env"), settings=settings, **image, **options)


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(ResourceError) as caught:
        plan(name, **options)
    return caught.value.message


def notes(planned: LaunchPlan) -> tuple[str, ...]:
    own = site(planned.site)
    return site_notes.notes(planned, own, describe_cluster(own), ROCM)


def lines(planned: LaunchPlan) -> list[str]:
    return a_launch(planned).scripts["job.sh"].splitlines()


@pytest.mark.parametrize(("nodes", "hours"), [(1, 2), (91, 2), (92, 6), (183, 6), (184, 12), (9472, 12)])
def test_the_bins_of_frontier(nodes: int, hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "kim")
    assert plan("frontier", nodes=nodes, time=f"{hours}:00:00").size.time_limit == hours * 60
    assert f"allows {hours:02d}:00:00, {hours}:01:00 requested" in refusal(
        "frontier", nodes=nodes, time=f"{hours}:01:00"
    )


def test_a_job_of_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "kim")
    planned = plan("frontier", nodes=2)
    asked = lines(planned)
    assert {"#SBATCH --partition=batch", "#SBATCH --cpus-per-task=7", "#SBATCH --constraint=nvme"} <= set(asked)
    assert planned.placement.gpu_order == AMD_ORDER
    assert planned.staging.directory == "/mnt/bb/kim"
    assert {"/usr/share/libdrm", "/var/spool/slurmd", "/opt/cray"} <= {mount.source for mount in planned.mounts.paths}
    for name in ("libcxi", "libjson-c", "libnl-3", "libjansson", "libxpmem"):
        assert f"/usr/lib64/{name}.so.*" in planned.environment.host_libraries
    assert "allows 1-00:00:00" in refusal("frontier", partition="extended", time="24:01:00")
    assert "64 usable nodes, 65" in refusal("frontier", partition="extended", nodes=65)


def test_jobs_that_may_wait_on_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    """It said `100 can run or wait`, and not what."""
    monkeypatch.setenv("USER", "kim")
    assert "partition batch: 100 jobs of yours can run or wait" in notes(plan("frontier"))


def test_the_network_of_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    """OLCF: for correctness, and not for one node. RCCL used TCP in silence where its plugin was missing."""
    monkeypatch.setenv("USER", "kim")
    wanted = {
        "NCCL_NET": "OFI",
        "NCCL_CROSS_NIC": "1",
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3",
        "HSA_FORCE_FINE_GRAIN_PCIE": "1",
        "FI_MR_CACHE_MONITOR": "kdreg2",
        "FI_CXI_DISABLE_HOST_REGISTER": "1",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
        "FI_CXI_RDZV_EAGER_SIZE": "0",
        "FI_CXI_RDZV_THRESHOLD": "0",
        "FI_CXI_RDZV_GET_MIN": "0",
        "FI_CXI_DEFAULT_TX_SIZE": "2048",
        "FI_CXI_RX_MATCH_MODE": "hybrid",
    }
    assert wanted.items() <= plan("frontier", nodes=2).environment.variables.items()
    assert not wanted.keys() & plan("frontier", nodes=1).environment.variables.keys()


@pytest.mark.parametrize(
    ("partition", "nodes", "time", "jobs"),
    [
        ("standard-g", 1024, "48:00:00", "200 jobs of yours can run at a time, 210 can run or wait"),
        ("small-g", 4, "72:00:00", "200 jobs of yours can run at a time, 210 can run or wait"),
        ("dev-g", 32, "3:00:00", "1 job of yours can run at a time, 2 can run or wait"),
    ],
)
def test_the_partitions_of_lumi(partition: str, nodes: int, time: str, jobs: str) -> None:
    planned = plan("lumi-g", partition=partition, nodes=nodes, time=time)
    assert f"partition {partition}: {jobs}" in notes(planned)
    assert f"has {nodes} usable nodes" in refusal("lumi-g", partition=partition, nodes=nodes + 1)
    assert "requested" in refusal("lumi-g", partition=partition, time=time.replace(":00:00", ":01:00"))
    assert planned.placement.gpu_order == AMD_ORDER
    assert "#SBATCH --cpus-per-task=7" in lines(planned)
    assert planned.environment.variables["NCCL_SOCKET_IFNAME"].startswith("hsn0")


def test_the_network_of_lumi() -> None:
    """What the plugin is called differs between images, so none is forced: the preflight refuses sockets."""
    one, two = (plan("lumi-g", nodes=nodes) for nodes in (1, 2))
    network = ("NCCL_NET_GDR_LEVEL", "NCCL_SOCKET_IFNAME", "CXI_FORK_SAFE", "FI_CXI_DISABLE_CQ_HUGETLB")
    assert set(network) <= two.environment.variables.keys()
    assert not set(network) & one.environment.variables.keys()
    assert "NCCL_NET" not in two.environment.variables
    check = plan_preflight(two, site("lumi-g"), "", lambda _: "new")
    assert check and check.strict and check.backend == "nccl"
    assert [any("network plugin" in note for note in notes(planned)) for planned in (one, two)] == [False, True]


def test_leonardo() -> None:
    planned = plan("leonardo", nodes=2, time="24:00:00")
    wanted = ("partition=boost_usr_prod", "gres=gpu:4", "mem=494000M", "cpus-per-task=8", "account=mine")
    assert {f"#SBATCH --{option}" for option in wanted} <= set(lines(planned))
    assert "(QOS normal) allows 1-00:00:00" in refusal("leonardo", time="25:00:00")
    long, short = ({"settings": {"qos": f"boost_qos_{name}"}} for name in ("lprod", "dbg"))
    assert plan("leonardo", time="96:00:00", **long).size.time_limit == 96 * 60
    assert "(QOS boost_qos_dbg) allows 00:30:00" in refusal("leonardo", time="0:31:00", **short)
    assert not planned.mounts.paths[:-1]
    assert not [
        name for name in planned.environment.variables if name.startswith("NCCL")
    ]  # it finds InfiniBand by itself


def test_snellius() -> None:
    for partition, cores in (("gpu_a100", 18), ("gpu_h100", 16)):
        planned = plan("snellius", partition=partition, time="120:00:00", gpus_per_node=1)
        assert {f"#SBATCH --cpus-per-task={cores}", "#SBATCH --gres=gpu:1"} <= set(lines(planned))
        assert "allows 5-00:00:00" in refusal("snellius", partition=partition, time="121:00:00")
