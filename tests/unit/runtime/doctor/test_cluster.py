from __future__ import annotations

import time
from pathlib import Path

import pytest

from ctrain_runtime.cluster.model import Partition
from ctrain_runtime.doctor import Finding, check_clock
from ctrain_runtime.doctor.cluster import check_cluster
from ctrain_runtime.site.model import Site
from samples import programs as fakes

SITE = Site(name="ours", scheduler="slurm")
GPU = Partition("gpu", True, nodes=2, cpus=4, gpus=2, gpu_type="a100")


def check(site: Site = SITE) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_cluster(site)[1]}


def configure(programs: Path, seconds_ahead: float, state: str = "IDLE", partition_state: str = "UP") -> None:
    """A cluster whose controller's clock is ahead."""
    fakes.slurm(programs, GPU)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds_ahead))
    node = f"NodeName=n1 CPUTot=4 Gres=(null) State={state} Partitions=gpu\n"
    partition = f"PartitionName=gpu Default=YES MaxTime=60 State={partition_state}\n"
    fakes.scontrol(programs, node=node, partition=partition, config=f"Configuration data as of {stamp}\n")


def test_a_scheduler_that_answers(programs: Path) -> None:
    configure(programs, 0)
    findings = check()
    assert {finding.level for finding in findings.values()} == {"ok"}
    assert findings["scheduler"].text == "slurm: gpu (1 of 1 nodes idle)"
    assert findings["clock"].text == "agrees with the controller of slurm"


def test_nodes_of_all_kinds_count(programs: Path) -> None:
    configure(programs, 0)
    nodes = "".join(
        f"NodeName=n{number} CPUTot=4 Gres={gres} State={state} Partitions=gpu\n"
        for number, (gres, state) in enumerate(
            (("gpu:a100:4", "IDLE+DRAIN"), ("gpu:v100:2", "MIXED"), ("(null)", "IDLE"))
        )
    )
    fakes.scontrol(programs, node=nodes, partition="PartitionName=gpu Default=YES State=UP\n", config="A = b\n")
    assert check()["scheduler"].text == "slurm: gpu (1 of 2 nodes idle)"


def test_a_scheduler_that_does_not_answer(programs: Path) -> None:
    cluster, (finding,) = check_cluster(SITE)
    assert (cluster, finding.level, finding.subject) == (None, "fail", "scheduler")
    assert finding.hint == "Load Slurm's module, or run here with --site local"
    fakes.slurm(programs, GPU)
    fakes.answer(programs, "scontrol", error="slurm_load_partitions: Unable to contact slurm controller\n", code=1)
    assert "Unable to contact slurm controller" in check()["scheduler"].text


def test_all_nodes_are_down(programs: Path) -> None:
    configure(programs, 0, "DOWN+DRAIN")
    finding = check()["scheduler"]
    assert (finding.level, finding.text) == ("fail", "slurm: all nodes of 1 open partition are down or drained")
    configure(programs, 0, partition_state="DRAIN")
    text = "slurm: all nodes of 0 open partitions are down or drained; gpu is drained"
    assert (check()["scheduler"].level, check()["scheduler"].text) == ("fail", text)


@pytest.mark.usefixtures("programs")
def test_without_a_scheduler_there_is_no_clock_but_this_one() -> None:
    assert check(Site(name="local", scheduler="local")) == {"scheduler": Finding("scheduler", "ok", "local")}


@pytest.mark.parametrize(
    ("ahead", "level", "word"), [(3600, "fail", "ahead"), (-3600, "fail", "behind"), (60, "warn", "ahead")]
)
def test_the_clock_of_the_controller(programs: Path, ahead: float, level: str, word: str) -> None:
    configure(programs, ahead)
    finding = check()["clock"]
    assert (finding.level, finding.text.endswith(word)) == (level, True)
    assert finding.hint.endswith("chronyc tracking")


@pytest.mark.parametrize(
    ("skew", "level", "text"),
    [
        (1.9, "ok", "agrees with X"),
        (-2.5, "warn", "X is 2.5 s behind"),
        (299, "warn", "X is 4 min 59 s ahead"),
        (300, "fail", "X is 5 min 0 s ahead"),
    ],
)
def test_clocks(skew: float, level: str, text: str) -> None:
    assert (check_clock("X", skew).level, check_clock("X", skew).text) == (level, text)
