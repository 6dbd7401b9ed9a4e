from __future__ import annotations

import json
from pathlib import Path

import pytest

from samples.programs import write_program
from samples.scripts import Scripts, slurm_task

SAY = "echo $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE node $NODE_RANK locale ${LC_ALL-}"

# As torch.distributed.run with a static rendezvous: numbers its ranks by node, ends with 1 if one fails.
TORCHRUN = """\
#!/usr/bin/env python3
import json, os, subprocess, sys
flags = dict(word[2:].split("=") for word in sys.argv[1:] if "=" in word and word.startswith("--"))
program = sys.argv[sys.argv.index("--no_python") + 1 :]
json.dump([sys.argv[1:], dict(os.environ)], open(os.environ["CTRAIN_RUN_DIR"] + "/agent", "w"))
count, node = int(flags["nproc_per_node"]), int(flags["node_rank"])
ranks = [
    subprocess.Popen(program, env={
        **os.environ, "LOCAL_RANK": str(local), "RANK": str(node * count + local),
        "WORLD_SIZE": str(count * int(flags["nnodes"])), "LOCAL_WORLD_SIZE": str(count),
    })
    for local in range(count)
]
sys.exit(any([rank.wait() for rank in ranks]))
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    made = Scripts(tmp_path)
    write_program(made.bin / "python", TORCHRUN)
    return made


def test_torchrun_is_started_once_per_node_and_its_ranks_are_recorded(scripts: Scripts) -> None:
    plan = scripts.plan(
        "bash", "-c", f"{SAY}; exit $RANK", launcher="torchrun", nodes=2, ranks_per_node=2, env={"LC_ALL": "POSIX"}
    )
    assert (plan.tasks, plan.tasks_per_node, plan.ranks_per_task, plan.cpus_per_task) == (2, 1, 2, 64)
    task = slurm_task(rank=1, size=2, per_node=1, hosts="gpu[03-04]")
    assert scripts.execute(plan, **task) == 1
    assert scripts.log(2) == "2/4 local 0/2 node 1 locale POSIX\n"
    assert scripts.log(3) == "3/4 local 1/2 node 1 locale POSIX\n"
    ended = {event["rank"]: event["code"] for event in scripts.node_events(1) if event["what"] == "ended"}
    assert ended == {2: 2, 3: 3}
    argv, environment = json.loads((scripts.run / "agent").read_text())
    assert argv[:4] == ["-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=2"]
    assert argv[4:7] == [f"--rdzv_id={plan.run_key}", "--node_rank=1", "--master_addr=gpu03"]
    assert environment["SLURM_PROCID"] == "1"
    assert not list(scripts.homes.iterdir())


def test_torchrun_that_starts_another_number_of_ranks_is_refused(scripts: Scripts) -> None:
    plan = scripts.plan("true", launcher="torchrun", ranks_per_node=2)
    write_program(scripts.bin / "python", TORCHRUN.replace('int(flags["nproc_per_node"])', "1"))
    assert scripts.execute(plan, **slurm_task()) == 1
    assert scripts.log() == "ctrain: torchrun started 1 ranks, but the plan has 2\n"
    assert [event["what"] for event in scripts.node_events()] == ["refused"]


def test_mpirun_starts_all_ranks_from_one_task(scripts: Scripts) -> None:
    plan = scripts.plan(
        "bash", "-c", SAY, launcher="mpi", local=True, nodes=2, ranks_per_node=2, env={"LC_ALL": "POSIX"}
    )
    assert (plan.program.launcher, plan.tasks, plan.ranks_per_task) == ("mpirun", 1, 4)
    assert scripts.execute(plan, CTRAIN_TASK="0", SLURM_PROCID="5", PMIX_RANK="6") == 0
    assert scripts.log(0) == "0/4 local 0/2 node 0 locale POSIX\n"
    assert scripts.log(3) == "3/4 local 1/2 node 1 locale POSIX\n"
    assert [event["rank"] for event in scripts.node_events(1) if event["what"] == "started"] in ([2, 3], [3, 2])


def test_mpirun_sees_nothing_of_a_scheduler_around_it(scripts: Scripts) -> None:
    """It would start its daemons by a scheduler's commands, which are not in the image."""
    plan = scripts.plan("env", launcher="mpi", local=True)
    assert scripts.execute(plan, CTRAIN_TASK="0", SLURM_JOB_ID="5", PMIX_RANK="6", PMI_SIZE="7") == 0
    assert not [line for line in scripts.log().splitlines() if line.startswith(("SLURM", "PMI"))]


def test_mpirun_of_another_world_is_refused(scripts: Scripts) -> None:
    """A fake that numbers its only rank as if it were alone, as an mpirun does that lost its options."""
    write_program(
        scripts.bin / "mpirun", '#!/bin/bash\nshift 4\nOMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 exec "$@"\n'
    )
    assert scripts.execute(scripts.plan("true", launcher="mpi", local=True, ranks_per_node=2), CTRAIN_TASK="0") == 72
    assert scripts.log() == "ctrain: mpirun started 1 ranks, but the plan has 2\n"
