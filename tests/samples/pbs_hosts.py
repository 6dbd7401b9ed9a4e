"""Runs on hosts of the stand-in of PBS, with the real engine and real images; and the real Hydra."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from samples.cluster import Cluster
from samples.programs import install
from samples.runs import Bench, ended

HYDRA = ("mpiexec", "hydra_pmi_proxy")
# Ranks have data of their own, so that a world of another size, or ranks with another's number, give another loss.
TRAIN = """\
import os, sys, torch

torch.set_num_threads(1)
if os.environ["LIBRARY"] == "horovod":
    import horovod.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    mean = lambda value: hvd.allreduce(value, op=hvd.Average)
elif os.environ["LIBRARY"] == "mpi4py":
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    assert MPI.Get_library_version().startswith("MPICH")

    def mean(value):
        total = value.clone()
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total.numpy())
        return total / size
else:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    def mean(value):
        dist.all_reduce(value)
        return value / size

generator = torch.Generator().manual_seed(rank)
inputs = torch.randn(16, 8, generator=generator, dtype=torch.float64)
targets = inputs.sum(1) + rank
weights = torch.zeros(8, dtype=torch.float64, requires_grad=True)
for step in range(10):
    loss = ((inputs @ weights - targets) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        weights -= 0.05 * mean(weights.grad)
        weights.grad.zero_()
print("LOSS", rank, size, mean(loss.detach()).item(), os.environ["LOCAL_RANK"], *sys.argv[1:], flush=True)
if os.environ["LIBRARY"] == "horovod":
    hvd.shutdown()  # mpirun expects the end of MPI
elif os.environ["LIBRARY"] == "mpi4py":
    MPI.Finalize()
os._exit(0)  # threads of Gloo may abort an interpreter that ends
"""


@contextlib.contextmanager
def hosts_of_pbs(folder: Path, hydra: Optional[Path] = None) -> Iterator[Bench]:
    """Hosts of the stand-in of PBS, with the real engine; `hydra` is an image whose mpiexec is on them, too.

    What a site sets for it is the command that reaches the other hosts.
    """
    folder.mkdir()
    bench = Bench(folder, "pbs")
    bench.site = "generic-pbs"
    for fake in ("apptainer", "python", "mpirun", "mpiexec"):
        (folder / "bin" / fake).unlink()
    if hydra:
        install(folder / "bin", "ssh")
        for name in HYDRA:
            _copy(hydra, f"/usr/local/bin/{name}", folder / "bin" / name)
        with (folder / ".bash_profile").open("a") as profile:
            profile.write(f"export HYDRA_LAUNCHER_EXEC={folder}/bin/ssh\n")
    try:
        yield bench
    finally:
        bench.end()


def _copy(image: Path, name: str, target: Path) -> None:
    """Copy a file out of an image."""
    as_user = ["--userns"] if os.geteuid() == 0 else []
    with target.open("wb") as out:
        subprocess.run(["apptainer", "--quiet", "exec", *as_user, str(image), "cat", name], stdout=out, check=True)
    target.chmod(0o755)


def logs(run: Path, first_word: str) -> list[list[str]]:
    """The words of the line that each rank printed, by rank."""
    texts = [(run / "logs" / f"rank{rank}.log").read_text() for rank in range(len(list(run.glob("logs/rank*.log"))))]
    return [line.split() for text in texts for line in text.splitlines() if line.startswith(first_word)]


def on_pbs(bench: Bench, image: str, launcher: str, *options: str) -> tuple[int, str]:
    """Run train.py on hosts of PBS: the exit code, and what ctrain printed."""
    library = {"gloo": "horovod", "mpi": "mpi4py"}.get(launcher, "torch")
    where = ("--site", bench.site, "--runs", str(bench.runs), "--name", "one", "--image", image)
    given = ("--launcher", launcher, "--gpus-per-node", "0", "--env", f"LIBRARY={library}", *options)
    code, out, error = ended(bench.ctrain("run", *where, *given, "--", "python", "train.py"))
    assert not bench.one.exists() or bench.record()["attempts"][0]["job_id"] == "1.login01"
    return code, out + error


def losses_on_pbs(cluster: Cluster, folder: Path, launcher: str, mpich: Path, nodes: int) -> set[float]:
    """The losses of the same ranks on as many of its hosts; of those of MPI, in the image with MPICH."""
    image, hydra = (str(mpich), mpich) if launcher == "mpi" else (str(cluster.image), None)
    with hosts_of_pbs(folder, hydra) as bench:
        (folder / "train.py").write_text(TRAIN)
        size = ("--nodes", str(nodes), "--ranks-per-node", "2", "--preflight", "off")  # all hosts are this machine
        code, text = on_pbs(bench, image, launcher, *size)
        assert code == 0, text
        assert f"launcher {launcher}{' (hydra)' if launcher == 'mpi' else ''};" in text
        ranks = logs(bench.one, "LOSS")
    assert [words[1:3] for words in ranks] == [[str(rank), str(2 * nodes)] for rank in range(2 * nodes)]
    return {float(words[3]) for words in ranks}
