from __future__ import annotations

from typing import Any

import pytest

from ctrain_runtime.cluster.model import Allocation, Cluster
from ctrain_runtime.job import Resources
from ctrain_runtime.plan.options import Options
from ctrain_runtime.plan.size import SizeRequest
from ctrain_runtime.plan.size_request import make_size_request, read_options
from samples.plans import a_job

ALLOCATION = Allocation("37", nodes=3, partition="gpu", cpus=16, gpus=2)
DEFAULTS = Resources(nodes=2, gpus_per_node=1, ranks_per_node=4, time="2:00:00")


@pytest.mark.parametrize(
    ("options", "cluster", "expected"),
    [
        ({}, Cluster(), (2, 1, 4, "2:00:00", False)),
        ({"nodes": 1, "gpus_per_node": 0}, Cluster(), (1, 0, 4, "2:00:00", False)),
        ({"time": "1:00"}, Cluster(), (2, 1, 4, "1:00", True)),
        ({}, Cluster(allocation=ALLOCATION), ("auto", 1, 4, "2:00:00", False)),
        ({"nodes": 2, "ranks_per_node": 1}, Cluster(allocation=ALLOCATION), (2, 1, 1, "2:00:00", False)),
    ],
)
def test_the_size_that_is_asked_for(options: dict[str, Any], cluster: Cluster, expected: tuple[Any, ...]) -> None:
    size = make_size_request(Options(**options), a_job(resources=DEFAULTS), cluster)
    assert (size.nodes, size.gpus_per_node, size.ranks_per_node, size.time, size.time_is_explicit) == expected


@pytest.mark.parametrize(
    ("options", "short", "expected"),
    [
        (("--partition=a", "-pb"), {"-p": "partition"}, {"partition": "b"}),
        (("-w gpu[1-2]", "--account=it's"), {"-w": "nodelist"}, {"nodelist": "gpu[1-2]", "account": "it's"}),
        (("-q long", "--exclusive", "word"), {"-q": "partition"}, {"partition": "long"}),
        (("-lx=1",), {}, {"-l": "x=1"}),
        (("--gres gpu:a100:4",), {}, {"gres": "gpu:a100:4"}),
        ((), {}, {}),
    ],
)
def test_options_of_the_scheduler_that_select(
    options: tuple[str, ...], short: dict[str, str], expected: dict[str, str]
) -> None:
    assert read_options(options, short) == expected


def test_options_of_the_scheduler_count_as_they_do_for_it() -> None:
    """They come after ctrain's own, so they win; the choice of a partition must know them."""
    options = Options(partition="a", settings={"account": "ai", "qos": "normal"})
    further = {"partition": "b", "account": "bio"}
    size = make_size_request(options, a_job(), Cluster(), None, further)
    assert (size.partition, size.account, size.qos) == ("b", "bio", "normal")


def test_what_nodes_must_have() -> None:
    def size(**options: str) -> SizeRequest:
        return make_size_request(Options(), a_job(), Cluster(), None, options)

    assert (size().features, size().gpu_type, size().memory, size().in_reservation) == ((), "", 0, False)
    features = [size(constraint=text).features for text in ("a100", "a100&ib", "gpu_type=a100:tier0=x", "[a|b]", "a*2")]
    assert features == [("a100",), ("a100", "ib"), ("gpu_type=a100", "tier0=x"), None, None]
    assert size(gres="nvme:1,gpu:a100:4").gpu_type == "a100"
    named = [
        size(gres=text).gpu_type for text in ("gpu:4", "nvme:gpu", "gpu:2080ti:4(S:0-1)", "gpu:3090:1", "gpu:h100")
    ]
    assert named == ["", "", "2080ti", "3090", "h100"]
    memory = [size(mem=text).memory for text in ("64G", "64gb", "1T", "512m", "2048k", "64000", "all")]
    assert memory == [65536, 65536, 1 << 20, 512, 2, 0, 0]
    assert size(reservation="course").in_reservation
