"""Who joined the world of a run, as seen on two real nodes: by torch, by MPI, and by nobody."""

from __future__ import annotations

import pytest

from samples.cluster import Cluster
from samples.long_mode import LONG

# Each stays until the scan has looked.
DDP = """\
    import os, time, torch.distributed as dist

    dist.init_process_group("gloo")
    time.sleep(float(os.environ.get("STAY", "3")))
    dist.barrier()
    os._exit(0)
"""
HOROVOD = """\
    import time
    import horovod.torch as hvd

    hvd.init()
    time.sleep(3)
"""
NESTED = """\
    torchrun --nproc-per-node 2 ddp.py
"""


JOINED = [("mpi", ("python", "sum.py")), ("node", ("bash", "nested.sh"))]
if LONG:  # by day, torch's ranks are those that torchrun starts
    JOINED.append(("env", ("python", "ddp.py")))


@pytest.mark.parametrize(("launcher", "command"), JOINED)
def test_the_record_says_who_joined(launcher: str, command: tuple[str, ...], cluster: Cluster) -> None:
    """Launcher node makes one world of what a script starts on each node."""
    for path, text in (("ddp.py", DDP), ("sum.py", HOROVOD), ("nested.sh", NESTED)):
        cluster.write(path, text)
    options = (
        "--nodes",
        "2",
        "--launcher",
        launcher,
        "--image",
        "pytorch-cpu",
        "--preflight",
        "off",
        "--name",
        launcher,
    )
    done = cluster.run("ctrain", "run", *options, "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert cluster.record(launcher)["world"] == {"state": "joined", "joined": 4, "of": 4}
    assert done.stdout.splitlines()[-2] == "world: joined 4/4"


def test_a_script_that_makes_a_world_on_each_node_is_stopped(cluster: Cluster) -> None:
    """After half a minute: one rank on each node, and neither knows of the other."""
    cluster.write("ddp.py", DDP)
    cluster.write("nested.sh", NESTED)
    options = ("--nodes", "2", "--ranks-per-node", "1", "--launcher", "env", "--image", "pytorch-cpu")
    run = ("--preflight", "off", "--env", "STAY=300", "--name", "nested", "--", "bash", "nested.sh")
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
