"""Commands that start ranks themselves, and tasks that are no ranks, on two real nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from samples.cluster import Cluster
from samples.pbs_hosts import logs

WORLD = """\
    import os, sys
    import torch, torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    rank = dist.get_rank()
    # In one write: the ranks of a node share a log, and print writes word by word where output is not buffered.
    words = ("WORLD", rank, dist.get_world_size(), int(total), os.environ["LOCAL_RANK"], sys.argv[1:])
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
    from until_joined import until_joined

    until_joined(4)
    dist.barrier()
"""
# As nanoGPT begins.
ASKS = """\
    import os, torch

    ddp = int(os.environ.get("RANK", -1)) != -1
    if ddp:
        torch.distributed.init_process_group(backend="nccl")
    print("TRAINS", ddp, flush=True)
"""
ALONE = """\
    import os
    from mpi4py import MPI

    names = ("CTRAIN_TASK", "CTRAIN_TASKS", "CUDA_VISIBLE_DEVICES", "RANK", "SLURM_PROCID")
    print("ALONE", MPI.COMM_WORLD.Get_size(), *(os.environ.get(name, "-") for name in names), flush=True)
"""
SAMPLES = [Path(__file__).parents[1] / "samples" / name for name in ("until_joined.py", "light.py")]
RUN = ("ctrain", "run", "--image", "pytorch-cpu", "--preflight", "off")


def printed(cluster: Cluster, name: str, word: str) -> list[str]:
    """What all ranks of a run printed behind this word, in the order of their numbers."""
    texts = [path.read_text() for path in cluster.runs(name).glob("logs/rank*.log")]
    return sorted(re.findall(rf"^{word} (.*)$", "\n".join(texts), re.MULTILINE))


@pytest.fixture
def programs(cluster: Cluster) -> Cluster:
    for name, text in (("w.py", WORLD), ("asks.py", ASKS), ("alone.py", ALONE)):
        cluster.write(name, text)
    for path in SAMPLES:
        cluster.write(path.name, path.read_text())
    return cluster


def test_a_script_that_starts_torchrun_on_each_node_makes_one_world(programs: Cluster) -> None:
    """As ranks, each of these made a world of its own, and the run ended with code 0."""
    programs.write("run.sh", 'echo "node $NODE_RANK of $CTRAIN_HOSTS"\nexec torchrun --nproc-per-node 2 w.py "$@"\n')
    done = programs.run(*RUN, "--nodes", "2", "--name", "script", "--launcher", "node", "--", "bash", "run.sh", "--x")
    assert done.returncode == 0, done.stdout + done.stderr
    assert printed(programs, "script", "WORLD") == [f"{rank} 4 4 {rank % 2} ['--x']" for rank in range(4)]
    assert started_by_node(programs, "script")["world"] == {"state": "joined", "joined": 4, "of": 4}
    assert "node 0 of node01,node02\n" in done.stdout
    assert done.stdout.splitlines()[-2] == "world: joined 4/4"


def test_a_text_that_starts_torchrun_on_each_node_fails_by_its_node(programs: Cluster) -> None:
    text = "python -m torch.distributed.run --nproc-per-node 2 light.py --x"
    done = programs.run(*RUN, "--nodes", "2", "--name", "text", "--", "sh", "-c", text)
    assert done.returncode == 1, done.stdout + done.stderr  # torchrun has a code of its own
    assert printed(programs, "text", "RANK") == [f"{rank} 4 {rank % 2} ['--x']" for rank in range(4)]
    assert started_by_node(programs, "text")
    assert "the command on node02 failed first: exit code 1" in done.stdout


def started_by_node(cluster: Cluster, name: str) -> dict[str, Any]:
    """The record of a run whose ranks a command on each node has started."""
    record = cluster.record(name)
    assert (record["launcher"], record["world_size"], record["nodes"]) == ("node", 4, ["node01", "node02"])
    return record


def test_one_rank_alone_starts_no_nccl(programs: Cluster) -> None:
    done = programs.run(*RUN, "--ranks-per-node", "1", "--name", "one", "--", "python", "asks.py")
    assert (done.returncode, logs(programs.runs("one"), "TRAINS")) == (0, [["TRAINS", "False"]]), done.stdout


def test_independent_tasks_have_numbers_and_gpus_of_their_own(programs: Cluster) -> None:
    """mpi4py takes neither the scheduler's tasks nor their number for a world."""
    done = programs.run(*RUN, "--nodes", "2", "--independent", "--name", "apart", "--", "python", "alone.py")
    assert done.returncode == 0, done.stdout + done.stderr
    seen = logs(programs.runs("apart"), "ALONE")
    assert seen == [["ALONE", "1", str(task), "4", str(task % 2), "-", "-"] for task in range(4)]
    assert "4 independent tasks, launcher env" in done.stdout
