"""An image with torch that ctrain did not build, on several nodes and for several users of the real cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime.store import sif
from samples import registry
from samples.cluster import Cluster

PROJECT = "researcher"  # the group of both users; this is also the name of the first
OTHER = "games"  # an account of every Debian
DDP = """\
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def train(rank, size):
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(rank))).sum().backward()
        optimizer.step()
    print("END", rank, size, [f"{value:.6f}" for value in model.module.weight.flatten().tolist()], flush=True)
dist.init_process_group("gloo")
train(dist.get_rank(), dist.get_world_size())
dist.barrier()
# Torch may abort as Python ends (pytorch/pytorch#190489), seen here also after destroy_process_group
os._exit(0)
"""


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[Path]:
    """A directory that both users can read, with a cache of images that both can write to, and their site."""
    directory = Path(tempfile.mkdtemp(dir=cluster.state))
    (directory / "images").mkdir()
    shutil.chown(directory / "images", group=PROJECT)
    (directory / "images").chmod(0o2775)
    (directory / "home").mkdir()
    shutil.chown(directory / "home", OTHER, OTHER)
    for site, parent in (("cluster", "generic-slurm"), ("here", "local")):
        keys = f"name: {site}\nextends: {parent}\nimage_cache: {directory}/images\n"
        (directory / f"{site}.yaml").write_text(keys + ("partition: cas_v100_2\n" if site == "cluster" else ""))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def test_nothing_of_ctrain_is_in_it(foreign_torch: Path) -> None:
    inspect = ["apptainer", "inspect", "--all", "--json", str(foreign_torch)]
    assert "ctrain" not in subprocess.run(inspect, check=True, capture_output=True, text=True).stdout
    assert len(sif.partitions(foreign_torch)) == 1
    look = [
        "apptainer",
        "exec",
        "--userns",
        str(foreign_torch),
        "find",
        "/opt",
        "/.singularity.d",
        "-iname",
        "*ctrain*",
    ]
    assert subprocess.run(look, check=True, capture_output=True, text=True).stdout == ""


def test_it_trains_on_two_nodes_by_path_and_pulled_once_for_two_users(
    cluster: Cluster, shared: Path, foreign_torch: Path, tmp_path: Path
) -> None:
    cluster.write("ddp.py", DDP)
    job = ["ctrain", "run", "--site", f"{shared}/cluster.yaml", "--nodes", "2", "--ranks-per-node", "1"]
    job += ["--launcher", "env", "--time", "5", "--preflight", "off"]
    program = ["--", "python3", "ddp.py"]
    done = cluster.run(*job, "--image", str(foreign_torch), "--name", "path", *program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "foreign.sif is untested: ctrain did not build it; contents " in done.stdout
    ends = weights(cluster, "path")
    assert [end.split()[:2] for end in ends] == [["0", "2"], ["1", "2"]]
    assert len({end.partition("[")[2] for end in ends}) == 1, "the ranks have the same model"

    with registry.serve(tmp_path / "registry") as server:
        subprocess.run(["apptainer", "push", str(foreign_torch), f"oras://{server.host}/team/torch:1"], check=True)
        with registry.front(server) as front:
            reference = f"oras://{front.host}/team/torch:1"
            first = cluster.start(*job, "--image", reference, "--name", "reference", *program)
            other = start_as_other(cluster, shared, reference)
            outputs = [process.communicate(timeout=300)[0] for process in (first, other)]
            pulls = [request for request in front.requests if request.method == "GET" and "/blobs/" in request.path]
    assert [first.returncode, other.returncode] == [0, 0], outputs
    assert sum(f"pulling {reference}" in output for output in outputs) == 1, outputs
    assert len({request.path for request in pulls}) == len(pulls), "nothing was fetched twice"
    assert weights(cluster, "reference") == ends
    records = [cluster.record(name)["image"] for name in ("path", "reference")]
    assert records[0]["digest"] == records[1]["digest"]
    (pulled,) = (shared / "images").glob("sha256-*.sif")
    assert records[1] == {"name": reference, "version": "", "digest": records[0]["digest"], "path": str(pulled)}


def start_as_other(cluster: Cluster, shared: Path, reference: str) -> subprocess.Popen[str]:
    """A run of the second user, on the login node."""
    identity = ["setpriv", "--reuid", OTHER, "--regid", OTHER, "--groups", f"{OTHER},{PROJECT}", "--inh-caps=-all"]
    environment = {"HOME": f"{shared}/home", "PATH": f"{cluster.state}/apps/venv/bin:{os.defpath}"}
    argv = [*identity, "ctrain", "run", "--site", f"{shared}/here.yaml", "--image", reference, "--launcher", "env"]
    options = {"cwd": shared / "home", "env": environment, "text": True}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(
        [*argv, "--", "python3", "-c", "import torch; print(torch.ones(2).sum())"], **options, **streams
    )


def weights(cluster: Cluster, run: str) -> list[str]:
    """What each rank printed at its end."""
    texts = [path.read_text() for path in (cluster.runs(run) / "logs").glob("rank*.log")]
    return sorted(line[4:] for text in texts for line in text.splitlines() if line.startswith("END "))
