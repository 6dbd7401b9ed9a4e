"""Commands that start ranks themselves, and tasks that are no ranks, on two real nodes."""

from __future__ import annotations

import re
from pathlib import Path

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
    if os.environ.get("CODE") == "0":
        from until_joined import until_joined

        until_joined(4)
    dist.barrier()
    sys.exit(int(os.environ.get("CODE", "0")) if rank == 3 else 0)
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
UNTIL_JOINED = Path(__file__).parents[1] / "samples" / "until_joined.py"
RUN = ("ctrain", "run", "--image", "pytorch-cpu", "--preflight", "off")


def worlds(cluster: Cluster, name: str) -> list[str]:
    """What all ranks of a run printed of their world, in the order of their numbers."""
    texts = [path.read_text() for path in cluster.runs(name).glob("logs/rank*.log")]
    return sorted(re.findall(r"^WORLD (.*)$", "\n".join(texts), re.MULTILINE))


@pytest.fixture
def programs(cluster: Cluster) -> Cluster:
    for name, text in (("w.py", WORLD), ("asks.py", ASKS), ("alone.py", ALONE)):
        cluster.write(name, text)
    cluster.write(UNTIL_JOINED.name, UNTIL_JOINED.read_text())
    return cluster


def test_a_script_that_starts_torchrun_on_each_node_makes_one_world(programs: Cluster) -> None:
    """As ranks, each of these made a world of its own, and the run ended with code 0."""
    programs.write("run.sh", 'echo "node $NODE_RANK of $CTRAIN_HOSTS"\nexec torchrun --nproc-per-node 2 w.py "$@"\n')
    text = "python -m torch.distributed.run --nproc-per-node 2 w.py --x"
    script = ("--launcher", "node", "--", "bash", "run.sh", "--x")
    for name, code, *command in (("script", 0, *script), ("text", 9, "--", "sh", "-c", text)):
        done = programs.run(*RUN, "--nodes", "2", "--name", name, "--env", f"CODE={code}", *command)
        assert done.returncode == min(code, 1), done.stdout + done.stderr  # torchrun has a code of its own
        assert worlds(programs, name) == [f"{rank} 4 4 {rank % 2} ['--x']" for rank in range(4)]
        record = programs.record(name)
        assert (record["launcher"], record["world_size"], record["nodes"]) == ("node", 4, ["node01", "node02"])
        if code:
            assert "the command on node02 failed first: exit code 1" in done.stdout
        else:
            assert "node 0 of node01,node02\n" in done.stdout
            assert record["world"] == {"state": "joined", "joined": 4, "of": 4}
            assert done.stdout.splitlines()[-2] == "world: joined 4/4"


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
