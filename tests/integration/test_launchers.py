"""How ranks come up on two real nodes: counted, bound, checked and recorded as ranks, whatever starts them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from samples.cluster import Cluster
from samples.long_mode import LONG, often
from samples.pbs_hosts import TRAIN, logs, losses_on_pbs

# Two runs that are there at the same time; one alone stays for a minute, and says that it was alone.
MEET = """\
    if "MEET" in os.environ:
        import pathlib, time
        pathlib.Path("met").mkdir(exist_ok=True)
        pathlib.Path("met", os.environ["MEET"]).touch()
        end = time.monotonic() + 60
        while len(list(pathlib.Path("met").iterdir())) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        print("MET", time.monotonic() < end, flush=True)
"""
DDP = f"""\
    import os, sys
    import torch, torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    dist.barrier()
    cores = sorted(os.sched_getaffinity(0))
    print("DDP", dist.get_rank(), dist.get_world_size(), total.item(), os.environ["LOCAL_RANK"], cores, sys.argv[1:])
    sys.stdout.flush()
{MEET}
    os._exit(0)
"""
SUM = f"""\
    import horovod.torch as hvd, os, torch
    hvd.init()
    total = hvd.allreduce(torch.tensor(float(os.environ["VALUE"])), op=hvd.Sum).item()
    print("SUM", hvd.size(), total, os.environ["MASTER_ADDR"], os.environ["OMPI_COMM_WORLD_SIZE"], flush=True)
{MEET}"""
ACCELERATED = """\
    import os, sys, torch

    os.environ["DS_ACCELERATOR"] = "cpu"  # accelerate imports DeepSpeed, which warns of a guess
    from accelerate import Accelerator

    accelerator = Accelerator()
    rank, total = accelerator.process_index, accelerator.reduce(torch.tensor(float(accelerator.process_index)))
    cores = sorted(os.sched_getaffinity(0))
    print("WORLD", rank, accelerator.num_processes, total.item(), accelerator.mixed_precision, cores, *sys.argv[1:])
    sys.stdout.flush()
    accelerator.wait_for_everyone()
    os._exit(0)
"""
LIGHT_RANK = Path(__file__).parents[1] / "samples" / "light.py"
IMAGE = ("--image", "pytorch-cpu")
# The first run of a launcher on several nodes, or on one, would have a preflight, for which all ranks import torch.
PLAIN = (*IMAGE, "--preflight", "off")


@pytest.fixture
def programs(cluster: Cluster) -> Cluster:
    cluster.write("ddp.py", DDP)
    cluster.write("sum.py", SUM)
    cluster.write(LIGHT_RANK.name, LIGHT_RANK.read_text())
    cluster.write("meet.py", f"import os\n{textwrap.dedent(MEET)}")
    shutil.rmtree(cluster.home / "met", ignore_errors=True)
    return cluster


def test_torchrun_is_started_once_per_node_and_its_failed_rank_is_named_not_its_task(programs: Cluster) -> None:
    """One that succeeds, in a world: test_preflight.py, test_starters.py."""
    argv = ["--nodes", "2", *PLAIN, "--name", "failed", "--", "torchrun", "--nproc_per_node", "2", "light.py", "--x"]
    done = programs.run("ctrain", "run", *argv)
    assert done.returncode == 9, done.stdout
    ranks = logs(programs.runs("failed"), "RANK")
    assert [words[1:] for words in ranks] == [[str(rank), "4", str(rank % 2), "['--x']"] for rank in range(4)]
    record = programs.record("failed")
    assert (record["launcher"], record["world_size"], record["nodes"]) == ("torchrun", 4, ["node01", "node02"])
    assert "rank 3 on node02 failed first: exit code 9" in done.stdout
    assert "logs/rank3.log; " in done.stdout


NODES = often(4, 2)  # of two ranks each
WORLD = str(2 * NODES)
# Commands that would start ranks themselves: launcher, words
STARTERS = {
    "horovodrun": ("gloo", "horovodrun", "-np", WORLD, "--gloo", "python", "train.py"),
    "deepspeed": ("env", "deepspeed", "--num_gpus", "2", "train.py"),
}
HERE: dict[str, str] = {}  # on this machine: launcher, the one of the record
ON_PBS = ["gloo"]
# By day, each launcher once at least: other tests here have torchrun, accelerate and env, test_run.py has MPI by Slurm
# and by mpirun, test_pbs.py MPI under Hydra, test_tutorials.py ranks of torch on this machine.
if LONG:
    STARTERS |= {
        "mpirun": ("mpi", "mpirun", "-np", WORLD, "-x", "LIBRARY=horovod", "python", "train.py"),
        "torchrun": ("torchrun", "torchrun", "--nproc_per_node", "2", "train.py"),
        "accelerate": ("env", "accelerate", "launch", "--cpu", "--num_processes", WORLD, "train.py"),
    }
    HERE |= {"torchrun": "torchrun", "env": "env", "gloo": "gloo", "mpi": "mpirun"}
    ON_PBS += ["mpi", "env", "torchrun"]


def test_every_launcher_makes_one_world_with_the_same_losses(
    four_nodes: Cluster, foreign_torch: Path, tmp_path: Path
) -> None:
    """By commands that would start ranks themselves, on this machine, and on PBS. Gloo needs neither MPI nor PMI."""
    four_nodes.write("train.py", TRAIN)
    losses = {}
    for name, (launcher, *command) in STARTERS.items():
        losses[name] = losses_of(four_nodes, name, launcher, *IMAGE, "--", *command)
        assert ("--mpi=pmix" if launcher == "mpi" else "--mpi=none") in (four_nodes.runs(name) / "job.sh").read_text()
    for launcher, recorded in HERE.items():
        here = ("--site", "local", "--ranks-per-node", "2", "--launcher", launcher, *IMAGE, "--", "python", "train.py")
        losses[f"local-{launcher}"] = losses_of(four_nodes, f"local-{launcher}", recorded, *here)
    for launcher in ON_PBS:
        losses[f"pbs {launcher}"] = losses_on_pbs(four_nodes, tmp_path / launcher, launcher, foreign_torch, NODES)
    every = [loss for name in losses.values() for loss in name]
    assert max(every) - min(every) < 1e-6, losses


def losses_of(cluster: Cluster, name: str, launcher: str, *arguments: str) -> set[float]:
    """The losses of all ranks, two on each node, started by a launcher."""
    library = "horovod" if launcher in ("mpi", "mpirun", "gloo") else "torch"
    options = ("--nodes", str(NODES), "--name", name, "--env", f"LIBRARY={library}", "--preflight", "off")
    done = cluster.run("ctrain", "run", *options, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert cluster.record(name)["launcher"] == launcher
    ranks = logs(cluster.runs(name), "LOSS")
    assert [words[1:3] for words in ranks] == [[str(rank), WORLD] for rank in range(2 * NODES)]
    own = {"deepspeed": "--local_rank={}"}.get(name, "")
    assert [" ".join(words[5:]) for words in ranks] == [own.format(words[4]) for words in ranks]
    return {float(words[3]) for words in ranks}


def test_a_launcher_is_proposed_and_worlds_of_one_are_refused(programs: Cluster) -> None:
    argv = ["ctrain", "run", "--nodes", "2", *IMAGE]
    for program, proposed in (("sum.py", "mpi: sum.py imports horovod"), ("ddp.py", "env: ddp.py imports torch")):
        done = programs.run(*argv, "--dry-run", "--", "python", program)
        assert f"note      launcher {proposed}\n" in done.stdout, done.stdout + done.stderr
    programs.write("hidden.py", "import importlib\nimportlib.import_module('sum')\n")
    hidden = ["--name", "hidden", "--launcher", "env", "--ranks-per-node", "1", "--env", "VALUE=1"]
    done = programs.run(*argv, *hidden, "--", "python", "hidden.py")
    assert done.returncode != 0
    assert "only MPI and Gloo are supported" in done.stdout
    assert logs(programs.runs("hidden"), "SUM") == []
    done = programs.run(*argv, "--", "torchrun", "sum.py")
    assert done.returncode == 64
    assert done.stderr.endswith("each of 4 ranks would train alone. Pass --launcher mpi or gloo\n")


def test_ranks_of_accelerate_are_one_world_and_bound_to_cores_of_their_own(programs: Cluster) -> None:
    programs.write("accelerated.py", ACCELERATED)
    options = ["--nodes", "2", *PLAIN, "--partition", "debug", "--time", "5", "--name", "accelerate"]
    command = ["accelerate", "launch", "--cpu", "--num_processes", "4", "--mixed_precision", "bf16", "accelerated.py"]
    done = programs.run("ctrain", "run", *options, "--", *command, "--x")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [words[1:] for words in logs(programs.runs("accelerate"), "WORLD")] == [
        [str(rank), "4", "6.0", "bf16", f"[{rank % 2}]", "--x"] for rank in range(4)
    ]
    record = programs.record("accelerate")
    assert (record["launcher"], record["world_size"], record["nodes"]) == ("env", 4, ["node01", "node02"])


def test_half_the_gpus_ask_for_half_the_node(programs: Cluster) -> None:
    """So two such runs share a node: neither asks for all cores, nor for all memory."""
    one = ["ctrain", "run", *PLAIN, "--launcher", "env", "--gpus-per-node", "1", "--nodelist", "node01"]
    names = ("half-1", "half-2")
    runs = [programs.start(*one, "--env", f"MEET={name}", "--name", name, "--", "python", "meet.py") for name in names]
    outputs = [run.communicate(timeout=120)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    for name in names:
        assert logs(programs.runs(name), "MET") == [["MET", "True"]], "one waited for the other"


def test_an_mpi_without_pmi_is_refused_before_it_trains(programs: Cluster) -> None:
    """Debian's Open MPI has no PMI2: two worlds of one, or an abort, but never a run that looks well."""
    programs.write("ctrain/pmi2.yaml", "name: pmi2\nextends: generic-slurm\nmpi: [pmi2]\n")
    site = str(programs.home / "ctrain/pmi2.yaml")
    argv = ["--site", site, "--nodes", "2", "--ranks-per-node", "1", *IMAGE, "--name", "pmi2", "--env", "VALUE=1"]
    done = programs.run("ctrain", "run", *argv, "--", "python", "sum.py")
    assert done.returncode == 80, done.stdout + done.stderr
    assert "If the image's MPI does not form one world here, pass --launcher gloo for Horovod" in done.stdout
    assert logs(programs.runs("pmi2"), "SUM") == [], "the program must not have run"
    assert programs.record("pmi2")["exit"]["by"] == "ctrain"


# Two runs at once: launcher and program of each. By day one of each launcher.
PAIRS = [(("mpi", "sum.py"), ("mpi", "sum.py")), (("env", "ddp.py"), ("env", "ddp.py"))]
if not LONG:
    PAIRS = [(("mpi", "sum.py"), ("env", "ddp.py"))]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(launcher for launcher, _ in pair))
def test_two_runs_in_one_allocation_are_two_worlds(
    programs: Cluster, pair: tuple[tuple[str, str], tuple[str, str]]
) -> None:
    programs.write(
        "both.sh",
        """\
        value=1
        while (($#)); do
          ctrain run --nodes 1 --ranks-per-node 2 --image pytorch-cpu --preflight off --launcher $1 --name run-$value \\
            --env VALUE=$value --env MEET=$value -- python $2 &
          shift 2
          value=$((value * 100))
        done
        wait
        """,
    )
    salloc = ["salloc", "--nodes=2", "--ntasks-per-node=2", "--gres=gpu:2", "--time=10"]
    done = programs.run(*salloc, "bash", "both.sh", *pair[0], *pair[1])
    nodes = [programs.record(f"run-{value}")["nodes"] for value in (1, 100)]
    assert sorted(nodes) == [["node01"], ["node02"]], done.stdout
    for value, (launcher, _), [node] in zip((1, 100), pair, nodes):
        word = "SUM" if launcher == "mpi" else "DDP"
        found = logs(programs.runs(f"run-{value}"), word)
        if launcher == "env":
            assert [words[2:4] for words in found] == [["2", "1.0"]] * 2, done.stdout
            continue
        assert [words[1:3] for words in found] == [["2", str(2.0 * value)]] * 2, done.stdout
        assert {words[3] for words in found} == {node}, "the rendezvous is the step's own first node"
        assert found[0][4] == "2", "programs that ask Open MPI's variables find them"


def test_inside_an_interactive_step_it_shares_the_step(programs: Cluster) -> None:
    salloc = ["salloc", "--nodes=1", "--ntasks=2", "--gres=gpu:2", "--time=10"]
    step = ["srun", "--nodes=1", "--ntasks=1", "--gres=gpu:2", "--cpus-per-task=2"]
    argv = ["ctrain", "run", *PLAIN, "--name", "in-step", "--env", "VALUE=1", "--", "python", "sum.py"]
    done = programs.run(*salloc, *step, *argv, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [words[1:3] for words in logs(programs.runs("in-step"), "SUM")] == [["2", "2.0"]] * 2


@pytest.mark.parametrize("gpus", ["--gpus=4", "--gpus-per-task=1", "--gpus-per-node=2", "--gres=gpu:2"])
def test_gpus_of_an_allocation_are_counted_however_they_were_requested(programs: Cluster, gpus: str) -> None:
    salloc = ["salloc", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", gpus, "--time=10"]
    done = programs.run(*salloc, "ctrain", "run", *IMAGE, "--dry-run", "--json", "--", "true")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout[done.stdout.index("{") :])["plan"]
    assert (plan["size"]["nodes"], plan["size"]["gpus_per_node"], plan["size"]["ranks_per_node"]) == (2, 2, 2)


def test_what_an_allocation_says_of_its_tasks_does_not_hold_for_ranks(programs: Cluster) -> None:
    """Else srun would give each rank the one GPU of a task, and LOCAL_RANK 1 would find none."""
    salloc = ["salloc", "--nodes=1", "--ntasks=2", "--gpus-per-task=1", "--hint=nomultithread", "--time=10"]
    argv = [
        "ctrain",
        "run",
        *PLAIN,
        "--launcher",
        "env",
        "--name",
        "per-task",
        "--",
        "printenv",
        "CUDA_VISIBLE_DEVICES",
    ]
    done = programs.run(*salloc, *argv)
    assert done.returncode == 0, done.stdout + done.stderr
    texts = [(programs.runs("per-task") / "logs" / f"rank{rank}.log").read_text().split() for rank in range(2)]
    assert texts == [["0,1"]] * 2


def test_ranks_of_a_node_share_a_home_that_is_gone_afterwards(programs: Cluster) -> None:
    argv = ["--nodes", "2", *PLAIN, "--launcher", "env", "--name", "homes", "--", "/bin/sh", "-c"]
    program = 'touch "$HOME/$RANK"; sleep 2; ls -x "$HOME"'
    done = programs.run("ctrain", "run", *argv, program)
    assert done.returncode == 0, done.stdout + done.stderr
    texts = [(programs.runs("homes") / "logs" / f"rank{rank}.log").read_text().split() for rank in range(4)]
    assert texts == [["0", "1"], ["0", "1"], ["2", "3"], ["2", "3"]]
    nodes = [programs.state / "nodes" / node / "tmp" for node in ("node01", "node02")]
    left = [path for node in nodes for path in node.glob("ctrain-[0-9]*")]
    assert left == []


def test_a_secret_passes_through_and_is_written_nowhere(programs: Cluster) -> None:
    argv = ["ctrain", "run", *IMAGE, "--launcher", "env", "--ranks-per-node", "1", "--name", "secret"]
    argv += ["--env", "MY_TOKEN", "--env", "OTHER_KEY=hunter2", "--"]
    value = "correct horse battery"  # its digest is compared, so that the check itself does not name it
    check = 'printf %s "$MY_TOKEN$OTHER_KEY" | md5sum'
    done = programs.run(*argv, "/bin/sh", "-c", check, MY_TOKEN=value)
    assert done.returncode == 0, done.stdout + done.stderr
    assert hashlib.md5(f"{value}hunter2".encode()).hexdigest() in done.stdout  # noqa: S324  # as md5sum prints it
    run = programs.runs("secret")
    assert subprocess.run(["grep", "-rl", value, str(run)], stdout=subprocess.DEVNULL).returncode == 1
    assert "hunter2" not in (run / "record.json").read_text()
    assert json.loads((run / "plan.json").read_text())["plan"]["environment"]["variables"]["OTHER_KEY"] == "***"
    assert run.stat().st_mode & 0o077 == 0


# The programs of the preflight as they are put into the run directory, with little patience.
COUNT = """\
    import os, pathlib, shutil, subprocess, sys
    shutil.copytree(sys.argv[1], "run/inside")
    os.mkdir("run/nodes")
    program = pathlib.Path("run/inside/world.py")
    program.write_text(program.read_text().replace("TIMEOUT_SECONDS = 60", "TIMEOUT_SECONDS = 5"))
    ranks, expected = int(sys.argv[2]), sys.argv[3]
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "61999", "WORLD_SIZE": expected, "NODE_RANK": "0"}
    settings |= {"CTRAIN_RUN_DIR": os.path.abspath("run"), "LOCAL_WORLD_SIZE": expected}
    argv = ["apptainer", "exec", sys.argv[4], "python3", str(program), "env", expected, "gloo", "0", ""]
    started = [subprocess.Popen(argv, env={**os.environ, **settings, "RANK": str(n)}) for n in range(ranks)]
    print([process.wait() for process in started], flush=True)
"""


def test_the_ranks_of_torch_are_counted_where_they_meet(programs: Cluster) -> None:
    argv = ["--nodes", "2", "--ranks-per-node", "1", *IMAGE, "--launcher", "env", "--name", "met", "--", "true"]
    shutil.rmtree(programs.home / "fresh-cache", ignore_errors=True)
    done = programs.run("ctrain", "run", *argv, XDG_CACHE_HOME=str(programs.home / "fresh-cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in (programs.runs("met") / "events.jsonl").read_text().splitlines()]
    assert [event["what"] for event in events if event["stage"] == "preflight"] == ["started", "passed"]
    programs.write("count.py", COUNT)
    image = programs.record("met")["image"]["path"]
    shutil.rmtree(programs.home / "run", ignore_errors=True)
    done = programs.run("python3", "count.py", str(programs.runs("met") / "inside"), "1", "2", image)
    assert done.stdout.splitlines()[-1] == "[1]", done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("ctrain: preflight: ")]
    assert "torch at 127.0.0.1:61999" in line
