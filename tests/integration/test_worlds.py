"""Who joined the world of a run, as seen on two real nodes, by torch. By day the others see it: Horovod's ranks in
test_run.py, torchrun's in test_starters.py, and a world on each node in tests/unit/runtime/cli/test_run_worlds.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples.cluster import Cluster
from samples.long_mode import LONG

DDP = """\
    import os, torch.distributed as dist
    from until_joined import until_joined

    dist.init_process_group("gloo")
    until_joined(4)
    dist.barrier()
    os._exit(0)
"""
NESTED = """\
    torchrun --nproc-per-node 2 ddp.py
"""
pytestmark = pytest.mark.skipif(not LONG, reason="by day, other runs show who joined: CTRAIN_LONG=1")
UNTIL_JOINED = Path(__file__).parents[1] / "samples" / "until_joined.py"


def write_programs(cluster: Cluster) -> None:
    for path, text in (("ddp.py", DDP), ("nested.sh", NESTED), (UNTIL_JOINED.name, UNTIL_JOINED.read_text())):
        cluster.write(path, text)


def test_the_record_says_who_joined(cluster: Cluster) -> None:
    """Of MPI: test_run.py."""
    write_programs(cluster)
    options = ("--nodes", "2", "--launcher", "env", "--image", "pytorch-cpu", "--preflight", "off", "--name", "env")
    done = cluster.run("ctrain", "run", *options, "--", "python", "ddp.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cluster.record("env")["world"] == {"state": "joined", "joined": 4, "of": 4}
    assert done.stdout.splitlines()[-2] == "world: joined 4/4"


def test_a_script_that_makes_a_world_on_each_node_is_stopped(cluster: Cluster) -> None:
    """After half a minute: one rank on each node, and neither knows of the other."""
    write_programs(cluster)
    options = ("--nodes", "2", "--ranks-per-node", "1", "--launcher", "env", "--image", "pytorch-cpu")
    run = ("--preflight", "off", "--name", "nested", "--", "bash", "nested.sh")
    done = cluster.run("ctrain", "run", *options, *run)
    assert done.returncode == 81, done.stdout + done.stderr
    reason = (
        "each of 2 ranks started ranks of its own (torchrun, 2 worlds of 2, same command): they would train 2 models"
    )
    assert done.stdout.splitlines()[-5:-1] == [
        reason,
        "exit code 81 (ctrain's)",
        "Let your command start the ranks of each node:  ctrain run ... --launcher node -- bash nested.sh",
        "Or say that they are meant to be apart:         ctrain run ... --independent -- bash nested.sh",
    ]
    assert cluster.record("nested")["world"] == {"state": "nested", "joined": 0, "of": 2}
