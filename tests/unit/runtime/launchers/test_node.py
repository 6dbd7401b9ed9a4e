from __future__ import annotations

from pathlib import Path

import pytest

from samples.programs import write_program
from samples.scripts import Scripts, slurm_task

PET = 'env | grep -E "^(PET_|RANK|WORLD|LOCAL_|NODE_RANK|MASTER|CTRAIN_[A-Z]*S|CTRAIN_.*NODE=|SLURM|PMI)" | sort'


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    made = Scripts(tmp_path)
    write_program(made.bin / "scontrol", "#!/bin/sh\necho gpu03\necho gpu04\n")
    return made


def test_the_command_of_a_node_knows_all_nodes_and_no_rank(scripts: Scripts) -> None:
    plan = scripts.plan("bash", "-c", f"{PET}; exit 5", launcher="node", nodes=2, ranks_per_node=4)
    assert (plan.tasks, plan.ranks_per_task, plan.size.world_size, plan.recorded_ranks) == (2, 4, 8, 2)
    task = slurm_task(rank=1, size=2, per_node=1, hosts="gpu[03-04]")
    around = {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "PMIX_RANK": "1", "SLURM_NNODES": "2"}
    assert scripts.execute(plan, **task, **around) == 5
    seen = dict(line.split("=", 1) for line in scripts.log(1).splitlines())
    port = seen.pop("MASTER_PORT")
    assert seen == {
        "CTRAIN_GPUS_PER_NODE": "8",
        "CTRAIN_HOSTS": "gpu03,gpu04",
        "CTRAIN_NODES": "2",
        "CTRAIN_RANKS_PER_NODE": "4",
        "MASTER_ADDR": "gpu03",
        "NODE_RANK": "1",
        "PET_MASTER_ADDR": "gpu03",
        "PET_MASTER_PORT": port,
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_RDZV_ENDPOINT": f"gpu03:{port}",
        "PET_RDZV_ID": plan.run_key,
        "SLURM_JOB_ID": "7",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "1",
    }
    assert scripts.node_events(1) == [
        {"stage": "run", "what": "started", "rank": 1},
        {"stage": "run", "what": "ended", "rank": 1, "code": 5},
    ]


def test_another_number_of_nodes_than_planned_is_refused(scripts: Scripts) -> None:
    plan = scripts.plan("true", launcher="node", nodes=2, ranks_per_node=4)
    assert scripts.execute(plan, **slurm_task()) == 72
    assert scripts.log() == "ctrain: srun started 1 nodes, but the plan has 2\n"


@pytest.mark.parametrize(("launcher", "independent", "number"), [("node", False, 1), ("env", True, 3)])
def test_a_program_that_is_not_in_the_image_is_refused_by_its_number(
    scripts: Scripts, launcher: str, independent: bool, number: int
) -> None:
    job = {"launcher": launcher, "independent": independent}
    plan = scripts.plan("no-such-program", **job, nodes=2, ranks_per_node=2)
    size = (1, 2, 1) if launcher == "node" else (3, 4, 2)
    assert scripts.execute(plan, **slurm_task(*size)) == 127
    refused = [event for event in scripts.node_events(1) if event["what"] == "refused"]
    assert [(event["rank"], event["code"]) for event in refused] == [(number, 127)]


def test_mpi_in_a_script_is_not_stopped_as_horovod_without_mpi_is(scripts: Scripts) -> None:
    assert "HOROVOD_CONTROLLER" not in scripts.plan("true", launcher="node", nodes=2).environment.variables
    assert "HOROVOD_CONTROLLER" not in scripts.plan("true", independent=True, nodes=2).environment.variables
