from __future__ import annotations

import dataclasses

import pytest

from samples.plans import a_site
from samples.scripts import Scripts, slurm_task

SEEN = 'env | grep -E "^(RANK|WORLD|LOCAL_|NODE_RANK|MASTER|PET_|CTRAIN_[TN]|SLURM|PMI|CUDA)" | sort'


def test_an_independent_task_has_its_number_and_nothing_of_a_world(scripts: Scripts) -> None:
    """By SLURM_* and PMI*, libraries would take tasks for ranks."""
    plan = scripts.plan("bash", "-c", f"{SEEN}; exit 4", independent=True, nodes=2, ranks_per_node=2)
    assert (plan.tasks, plan.recorded_ranks, plan.program.launcher) == (4, 4, "env")
    around = {"PMI_RANK": "1", "PMIX_RANK": "1", "RANK": "7", "SLURM_NNODES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert scripts.execute(plan, **{**slurm_task(rank=3, size=4, per_node=2), **around}) == 4
    assert scripts.log(3).splitlines() == [
        "CTRAIN_NODE=1",
        "CTRAIN_TASK=3",
        "CTRAIN_TASKS=4",
        "CUDA_VISIBLE_DEVICES=2,3",
        "SLURM_JOB_ID=7",
        "SLURM_NNODES=2",
        "SLURM_NODEID=1",
    ]
    assert scripts.node_events(1) == [
        {"stage": "run", "what": "started", "rank": 3},
        {"stage": "run", "what": "ended", "rank": 3, "code": 4},
    ]


@pytest.mark.parametrize(
    ("visible", "gpus", "tasks", "own"),
    [
        ("0,1,2,3", 4, 4, ["0", "1", "2", "3"]),
        ("4,7", 2, 2, ["4", "7"]),
        ("GPU-a,GPU-b", 2, 2, ["GPU-a", "GPU-b"]),
        ("0,1,2,3", 4, 2, ["0,1", "2,3"]),
        ("0,1,2", 3, 2, ["0", "1"]),
        ("0,1", 2, 4, ["0", "1", "0", "1"]),
        (None, 2, 2, ["0", "1"]),  # a machine without a scheduler
        ("", 2, 2, ["", ""]),
        (None, 0, 2, [None, None]),
        ("0,1", 0, 1, ["0,1"]),
    ],
)
def test_each_task_sees_gpus_of_its_own(
    scripts: Scripts, visible: str | None, gpus: int, tasks: int, own: list[str | None]
) -> None:
    show = "echo ${CUDA_VISIBLE_DEVICES-none}"
    plan = scripts.plan("bash", "-c", show, independent=True, ranks_per_node=tasks, gpus_per_node=gpus)
    scripts.create(plan)
    given = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    for task in range(tasks):
        assert scripts.start("task.sh", **slurm_task(task, tasks), **given).wait() == 0
    assert [scripts.log(task).rstrip("\n") for task in range(tasks)] == ["none" if gpu is None else gpu for gpu in own]


def test_the_order_of_the_site_holds_before_gpus_are_shared_out(scripts: Scripts) -> None:
    plan = scripts.plan(
        "bash", "-c", "echo $CUDA_VISIBLE_DEVICES", independent=True, ranks_per_node=4, gpus_per_node=4,
        site=a_site(gpu_order=(3, 2, 1, 0)),
    )  # fmt: skip  # rows, as they are read
    assert scripts.execute(plan, **slurm_task(1, 4), CUDA_VISIBLE_DEVICES="0,1,2,3") == 0
    assert scripts.log(1) == "2\n"


def test_an_image_for_no_known_gpus_gets_a_share_of_those_that_the_scheduler_sets(scripts: Scripts) -> None:
    """A program of the job's own directory may use them."""
    show = "echo ${CUDA_VISIBLE_DEVICES-none} ${ZE_AFFINITY_MASK-none}"
    plan = scripts.plan("bash", "-c", show, independent=True, ranks_per_node=2, gpus_per_node=2)
    plan = dataclasses.replace(plan, image=dataclasses.replace(plan.image, cuda=False))
    assert scripts.execute(plan, **slurm_task(1, 2), CUDA_VISIBLE_DEVICES="4,5") == 0
    assert scripts.log(1) == "5 none\n"
