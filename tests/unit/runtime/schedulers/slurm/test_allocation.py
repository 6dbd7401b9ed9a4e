from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.cluster.model import Allocation
from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.schedulers.slurm import facts
from ctrain_runtime.schedulers.slurm.allocation import is_in_step, parse_allocation, read_allocation
from samples.programs import answer
from samples.recordings import VERSIONS, install_cluster, jobs, record

RECORDED = Allocation("37", nodes=2, partition="amd_a100nv_8", cpus=1, gpus=8, minutes_left=9)


def own(line: str) -> str:
    """A recorded line as if the user of this test owned the job."""
    return line.replace("(1001)", f"({os.getuid()})")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_allocation(version: str) -> None:
    assert parse_allocation("37", jobs(version)["RUNNING"]) == RECORDED
    assert parse_allocation("37", record(version, "state.RUNNING.show-job-d.out")) == RECORDED


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cluster_from_inside_an_allocation(programs: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install_cluster(programs, version, job=own(jobs(version)["RUNNING"]))
    monkeypatch.setenv("SLURM_JOB_ID", "37")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    allocation = facts.read_cluster().allocation
    assert allocation
    assert (allocation.gpus, allocation.in_step) == (8, True)
    assert "--oneliner --details show job 37" in calls["scontrol"].read_text().splitlines()


def test_no_allocation() -> None:
    assert read_allocation() is None


@pytest.mark.parametrize("version", VERSIONS)
def test_allocations_that_are_gone(programs: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "37")
    answer(programs, "scontrol", error=record(version, "show-job-unknown.err"), code=1)
    with pytest.raises(SchedulerError, match=r"^SLURM_JOB_ID is 37: job not found\. Leave this shell"):
        read_allocation()
    answer(programs, "scontrol", error=record(version, "dead-scontrol-show-job-1.err"), code=1)
    with pytest.raises(SchedulerError, match=r"^cannot look up job 37 \(SLURM_JOB_ID\): .*Unable to contact"):
        read_allocation()
    for state in ("TIMEOUT", "COMPLETING", "PENDING-Held"):
        answer(programs, "scontrol", own(jobs(version)[state]))
        expected = rf"^SLURM_JOB_ID is 37: job is not running \({state.split('-')[0]}\)\. Leave"
        with pytest.raises(SchedulerError, match=expected):
            read_allocation()
    answer(programs, "scontrol", jobs(version)["RUNNING"].replace("(1001)", f"({os.getuid() + 1})"))
    with pytest.raises(SchedulerError, match=r"^SLURM_JOB_ID is 37: job of another user\. Leave"):
        read_allocation()


def job_line(**fields: str) -> str:
    values = {"NumNodes": "2", "NumCPUs": "16", "NumTasks": "4", "Partition": "gpu", **fields}
    tail = {name: values.pop(name) for name in list(values) if name.startswith("TresPer")}
    details = values.pop("details", "")
    head = "JobId=1 JobName=a b UserId=kim(7) GroupId=kim(7) MCS_label=N/A Priority=1 Nice=0 Account=(null) QOS=normal"
    return (
        f"{head} JobState=RUNNING Reason=None Dependency=(null) "
        + " ".join(f"{name}={value}" for name, value in values.items())
        + f" {details} Command=(null) WorkDir=/x Comment=TresPerNode=gres/gpu:9 StdErr=/x StdOut=/x "
        + " ".join(f"{name}={value}" for name, value in tail.items())
    )


@pytest.mark.parametrize(
    ("fields", "gpus"),
    [
        ({}, 0),
        ({"AllocTRES": "cpu=16,node=2,billing=2,gres/gpu=16,gres/gpu:a100=16"}, 8),
        ({"TRES": "cpu=16,node=2,gres/gpu=4"}, 2),
        ({"AllocTRES": "cpu=16,node=2,gres/gpu=3"}, None),  # two on one node, one on the other
        ({"TresPerNode": "gres:gpu:2"}, 2),
        ({"TresPerNode": "gres/gpu:a100:4"}, 4),
        ({"TresPerNode": "gres/nvme:1,gres/gpu:2"}, 2),
        ({"TresPerNode": "cpu:8"}, 0),
        ({"TresPerJob": "gres:gpu:4"}, 2),
        ({"TresPerJob": "gres/gpu:v100:3"}, None),
        ({"TresPerTask": "gres:gpu:1"}, 2),
        ({"TresPerTask": "cpu=2,gres/gpu=1"}, None),
        ({"TresPerSocket": "gres:gpu:2"}, None),
        ({"TresPerSocket": "gres:gpu:2", "AllocTRES": "gres/gpu=8"}, 4),
        ({"TresPerSocket": "gres:gpu:2", "details": "Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:a100:4(IDX:0-3)"}, 4),
        (
            {
                "TresPerJob": "gres:gpu:4",
                "details": "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:3(IDX:0-2) Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)",
            },
            1,
        ),
        ({"details": "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:3(IDX:0-2) Nodes=n2 CPU_IDs=0 Mem=0 GRES="}, None),
    ],
)
def test_gpus_of_an_allocation(fields: dict[str, str], gpus: int | None) -> None:
    assert parse_allocation("1", job_line(**fields)).gpus == gpus


def test_memory_of_an_allocation() -> None:
    assert parse_allocation("1", job_line(AllocTRES="cpu=16,mem=100G,node=2")).memory == 51200
    assert parse_allocation("1", job_line()).memory == 0


@pytest.mark.parametrize(
    ("limit", "used", "left"),
    [
        ("00:10:00", "00:00:02", 9),
        ("1-00:00:00", "12:00:00", 720),
        ("UNLIMITED", "12:00:00", None),
        ("00:10:00", "00:11:00", 0),
        ("Partition_Limit", "00:00:00", None),
    ],
)
def test_time_that_is_left(limit: str, used: str, left: int | None) -> None:
    assert parse_allocation("1", job_line(TimeLimit=limit, RunTime=used)).minutes_left == left


@pytest.mark.parametrize(
    ("step_id", "in_step"),
    [("0", True), ("12", True), ("", False), ("-5", False), ("4294967291", False), ("4294967290", False), ("x", False)],
)
def test_steps(step_id: str, in_step: bool) -> None:
    assert is_in_step(step_id) is in_step


@given(st.text() | st.lists(st.sampled_from([*job_line().split(" "), "NumNodes=0", "\n"])).map(" ".join))
def test_any_text_is_survived(text: str) -> None:
    try:
        allocation = parse_allocation("1", text)
    except CtrainError:
        return
    assert allocation.nodes >= 1
